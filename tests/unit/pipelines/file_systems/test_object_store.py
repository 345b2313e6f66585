from __future__ import annotations

import pytest

from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.file_systems.object_store import ObjectStoreFiles, store_arguments
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions


def test_settings_are_sparks() -> None:
    options = FileSystemOptions.of({"spark.hadoop.fs.s3a.access.key": "a", "spark.hadoop.fs.s3a.secret.key": "s"}, {})
    assert store_arguments("lake", options.hadoop) == {"access_key": "a", "secret_key": "s"}
    assert store_arguments("lake", {"fs.s3a.session.token": "t"} | dict(options.hadoop))["session_token"] == "t"
    provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    assert store_arguments("lake", {"fs.s3a.aws.credentials.provider": provider}) == {"anonymous": True}
    assert store_arguments("lake", {}) == {}
    assert "'s'" not in repr(options)


def test_a_bucket_has_settings_of_its_own() -> None:
    settings = {"fs.s3a.endpoint": "http://a", "fs.s3a.bucket.lake.endpoint": "http://b"}
    assert store_arguments("lake", settings)["endpoint_override"] == "http://b"
    assert store_arguments("sea", settings)["endpoint_override"] == "http://a"


def test_a_store_that_does_not_answer_is_told_in_one_line() -> None:
    settings = {"fs.s3a.endpoint": "http://127.0.0.1:1", "fs.s3a.access.key": "a", "fs.s3a.secret.key": "hidden"}
    files = file_system("s3a://lake/x", FileSystemOptions(hadoop=settings))
    assert isinstance(files, ObjectStoreFiles)
    with pytest.raises(FileSystemError, match="s3a://lake/x cannot be used") as failed:
        files.entry("s3a://lake/x")
    assert "\n" not in str(failed.value)
    assert "hidden" not in str(failed.value)
    with pytest.raises(FileSystemError, match="names no bucket"):
        files.entry("s3a:///x")
