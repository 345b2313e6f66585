"""The settings of an archiver's Spark."""

from __future__ import annotations

from headwater.cli.archive.run import CONNECT_RETRIES, archiver_conf


def test_a_silent_name_node_is_given_up_soon_unless_a_setting_says_otherwise() -> None:
    [name] = CONNECT_RETRIES
    assert archiver_conf({}, {}) == {"spark.scheduler.mode": "FAIR", **CONNECT_RETRIES}
    assert archiver_conf({name: "9"}, {})[name] == "9"
    # Its files have what they have: Spark's own settings would override them.
    assert name not in archiver_conf({}, {"HADOOP_CONF_DIR": "/etc/hadoop"})
