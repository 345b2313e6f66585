from __future__ import annotations

import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headwater.pipelines.file_systems.file_system import FileSystemError, UnavailableError
from headwater.pipelines.file_systems.hadoop_settings import HadoopSettingsError, http_addresses, parse_site, qualified
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.file_systems.webhdfs import WebHdfsFiles
from tests.conftest import Certificates


def site(folder: Path, name: str, **properties: str) -> None:
    rows = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
    (folder / name).write_text(f"<?xml version='1.0'?>\n<configuration>{''.join(rows)}</configuration>")


def test_settings_come_from_the_files_and_from_spark(tmp_path: Path) -> None:
    site(tmp_path, "core-site.xml", **{"fs.defaultFS": "hdfs://${dfs.nameservices}", "io.file.buffer.size": "1"})
    site(tmp_path, "hdfs-site.xml", **{"dfs.nameservices": "lake", "dfs.http.policy": "HTTPS_ONLY"})
    found = FileSystemOptions.of(
        {"spark.hadoop.dfs.http.policy": "HTTP_ONLY", "spark.master": "local"},
        {"HADOOP_CONF_DIR": str(tmp_path), "HADOOP_USER_NAME": "ann", "HEADWATER_WEBHDFS": "http://a:1/, http://b:2"},
    )
    assert found.webhdfs == ("http://a:1", "http://b:2")
    assert found.user == "ann"
    assert dict(found.hadoop) == {
        "fs.defaultFS": "hdfs://${dfs.nameservices}",
        "dfs.nameservices": "lake",
        "dfs.http.policy": "HTTP_ONLY",
    }
    assert qualified("hdfs:///a/b/", found.hadoop) == ("lake", "/a/b")
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HEADWATER_WEBHDFS": "nn:9870"}, "HEADWATER_WEBHDFS: 'nn:9870' is no http"),
        ({"HEADWATER_WEBHDFS_TOKEN_FILE": "/none/token"}, "HEADWATER_WEBHDFS_TOKEN_FILE: /none/token cannot be read"),
    ],
)
def test_bad_settings_are_told_in_one_line(environment: dict[str, str], said: str) -> None:
    with pytest.raises(FileSystemError, match=said):
        FileSystemOptions.of({}, environment)


@pytest.mark.parametrize("text", ["<configuration>", "<!DOCTYPE a [<!ENTITY b 'c'>]><configuration/>", ""])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "core-site.xml").write_text(text)
    with pytest.raises(FileSystemError, match=r"core-site.xml cannot be used"):
        FileSystemOptions.of({}, {"HADOOP_CONF_DIR": str(tmp_path)})
    with pytest.raises(HadoopSettingsError):
        parse_site(text.encode())


def test_a_url_without_namenode_needs_a_default() -> None:
    with pytest.raises(FileSystemError, match=r"hdfs:///lake names no NameNode"):
        file_system("hdfs:///lake", FileSystemOptions())
    with pytest.raises(FileSystemError, match="has neither"):
        file_system("hdfs://lake/a", FileSystemOptions(hadoop={"dfs.ha.namenodes.lake": "a"}))


def test_settings_of_one_cluster_are_not_another_clusters() -> None:
    settings = {"fs.defaultFS": "hdfs://one:8020", "dfs.namenode.http-address": "one:50070"}
    assert http_addresses("one:8020", settings) == ["http://one:50070"]
    assert http_addresses("two:8020", settings) == ["http://two:9870"]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(FileSystemError, match="the scheme 'gopher' is not supported"):
        file_system("gopher://a/b", FileSystemOptions())


class _NameNode(BaseHTTPRequestHandler):
    """Refuses everything, and keeps the requests' targets."""

    targets: list[str] = []  # noqa: RUF012 - the class is the server's state
    refusal: tuple[int, str, str] = (401, "", "")

    def do_GET(self) -> None:
        self.targets.append(self.path)
        status, exception, message = self.refusal
        body = json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def namenode() -> Iterator[str]:
    _NameNode.targets.clear()
    server = HTTPServer(("127.0.0.1", 0), _NameNode)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_token_takes_the_place_of_the_user_and_is_never_told(namenode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_NameNode, "refusal", (403, "SecretManager$InvalidToken", "token is expired"))
    options = FileSystemOptions(user="ann", token="SECRETTOKEN")
    with pytest.raises(FileSystemError, match="hdfs://nn/a cannot be used: token is expired") as failed:
        WebHdfsFiles([namenode], options).entry("hdfs://nn/a")
    assert _NameNode.targets == ["/webhdfs/v1/a?op=GETFILESTATUS&delegation=SECRETTOKEN"]
    assert "SECRETTOKEN" not in str(failed.value) + repr(options)


def test_a_cluster_that_asks_for_a_login_is_explained(namenode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_NameNode, "refusal", (401, "", ""))
    with pytest.raises(FileSystemError, match="Kerberos"):
        WebHdfsFiles([namenode], FileSystemOptions(user="ann")).read("hdfs://nn/a")
    assert len(_NameNode.targets) == 1


def test_https_is_verified(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_NameNode, "refusal", (403, "AccessControlException", "no rights"))
    server = HTTPServer(("127.0.0.1", 0), _NameNode)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        files = WebHdfsFiles([f"https://localhost:{server.server_address[1]}"], FileSystemOptions(user="a", wait_s=0))
        with pytest.raises(UnavailableError, match=r"CERTIFICATE_VERIFY_FAILED"):
            files.entry("hdfs://nn/a")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
        with pytest.raises(FileSystemError, match="no rights"):
            files.entry("hdfs://nn/a")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_an_active_namenode_the_line_says_so(namenode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_NameNode, "refusal", (403, "StandbyException", "READ is not supported in state standby"))
    files = WebHdfsFiles([namenode, namenode], FileSystemOptions(user="ann", wait_s=0.5))
    with pytest.raises(FileSystemError, match=r"no NameNode of .* is active, asked again for 0 s; make one active"):
        files.list("hdfs://lake/a")
    assert len(_NameNode.targets) > 1
