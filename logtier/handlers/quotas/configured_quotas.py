"""The client quotas, updated with the newest image."""

from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.quota.client_quotas import ClientQuotas


def configured_quotas(metadata: MetadataCache) -> ClientQuotas:
    """Return the quotas of the image, which follow its changes."""
    config = metadata.static_config
    quotas = ClientQuotas(
        windows=config.quota_window_num,
        window_ms=config.quota_window_size_seconds * 1000,
        controller_windows=config.controller_quota_window_num,
        controller_window_ms=config.controller_quota_window_size_seconds * 1000,
    )

    def follow(delta: MetadataDelta) -> None:
        if delta.new.client_quotas is not delta.old.client_quotas:
            quotas.replace(delta.new.client_quotas.values())

    quotas.replace(metadata.image.client_quotas.values())
    metadata.subscribe(follow)
    return quotas
