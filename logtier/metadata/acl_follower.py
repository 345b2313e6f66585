"""The configured authorizer, updated with the access control lists of the newest image."""

from headwater.logtier.config.principals import parse_principals
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.security.acl_authorizer import AclAuthorizer
from headwater.logtier.security.authorizer import Authorizer


def configured_authorizer(metadata: MetadataCache) -> Authorizer | None:
    """Return the authorizer of `authorizer.class.name`, which follows the image; None without one."""
    config = metadata.static_config
    if not config.authorizer_class_name:
        return None
    authorizer = AclAuthorizer(
        parse_principals(config.super_users), allow_if_no_acl=config.allow_everyone_if_no_acl_found
    )

    def follow(delta: MetadataDelta) -> None:
        if delta.new.acls is not delta.old.acls:
            authorizer.replace(delta.new.acls.values())

    authorizer.replace(metadata.image.acls.values())
    metadata.subscribe(follow)
    return authorizer
