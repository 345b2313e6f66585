"""The demo from end to end: produce, run the pipeline, query, prove."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.cli.demo import flights, produce, proof
from headwater.cli.demo.files import conf_file
from headwater.cli.demo.show import Show
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_INTERRUPTED, CliError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.api.topic_admin import TopicAdmin
    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.definition import Loaded

SOURCE = "flights"
ARCHIVE = "archive"  # the Delta table of the source's records in queries, where `flights` is the topic

QUERIES = (
    (
        "SQL over the Delta table: the five most delayed carriers",
        """SELECT carrier, first(name) AS airline, count(*) AS flights, avg(dep_delay) AS minutes_late
           FROM archive JOIN airlines USING (carrier) GROUP BY carrier ORDER BY minutes_late DESC LIMIT 5""",
    ),
    (
        "SQL over the topic delays: the worst hours of a carrier with ten flights or more",
        """SELECT hour.start AS hour, airline, flights, delay AS minutes_late
           FROM delays WHERE flights >= 10 ORDER BY delay DESC LIMIT 5""",
    ),
    (
        "SQL over the topic rising: the routes that led the most often",
        """SELECT route, count(*) AS times, max(flights) AS flights_in_24_hours
           FROM rising WHERE place = 1 GROUP BY route ORDER BY times DESC, route LIMIT 5""",
    ),
    (
        "SQL over the topic flights.dead_letters: why records were refused",
        "SELECT error, count(*) AS records FROM `flights.dead_letters` GROUP BY error",
    ),
)


@dataclass(frozen=True, slots=True)
class Folders:
    """The demo's folders, below one root."""

    root: str

    @property
    def node(self) -> str:
        """The broker's data."""
        return os.path.join(self.root, "node")

    @property
    def lake(self) -> str:
        """The Delta tables."""
        return os.path.join(self.root, "lake")

    @property
    def state(self) -> str:
        """The pipeline's checkpoints."""
        return os.path.join(self.root, "state")


def load_pipeline(folders: Folders, data: str) -> Loaded:
    """Load conf/pipelines/flights.yaml with this demo's folders."""
    from headwater.pipelines.validation.pipeline_file import load

    return load(conf_file("pipelines", "flights.yaml"), {"data": data, "lake": folders.lake})


def run(
    bootstrap_servers: str,
    folders: Folders,
    data: str,
    show: Show,
    command_config: str = "",
    security: Mapping[str, str] | None = None,
) -> bool:
    """Run the demo against a broker; returns whether the proof holds. The Spark session ends with the demo.

    `command_config` is the path of the connection's properties file, `security` its content.
    """
    from headwater.api.topic_admin import TopicAdmin
    from headwater.cli.pipeline.stopping import run_until_signal
    from headwater.cli.pipeline.topic_creation import topics_creator
    from headwater.pipelines.engine.runner import Runner, RunOptions
    from headwater.pipelines.spark.session import close_session, running_session

    loaded = load_pipeline(folders, data)
    admin = TopicAdmin(bootstrap_servers, security=security)
    options = RunOptions(bootstrap_servers, folders.state, command_config=command_config)
    ensure = topics_creator(admin)
    _produce(admin, security or {}, loaded, data, show)
    show.line("running conf/pipelines/flights.yaml: clean, delays, rising (starting Spark takes a few seconds)")
    with show.stages(flights.FLIGHTS) as on_progress:
        result = run_until_signal(Runner(loaded, options, ensure, on_progress), show.spark_is_up)
    spark = running_session()
    assert spark is not None, "the runner leaves its session open"
    try:
        if result.stopped:
            raise CliError("demo", "stopped before its end", exit_code=EXIT_INTERRUPTED)
        show.line("the pipeline has run")
        late_rows = sum(totals.late_rows for totals in result.totals.values())
        _queries(spark, options.brokers, loaded)
        return _prove(spark, options.brokers, folders, admin, late_rows)
    finally:
        close_session()


def _produce(admin: TopicAdmin, security: Mapping[str, str], loaded: Loaded, data: str, show: Show) -> None:
    """Produce the source records, once: the data folder of an earlier demo contains them already."""
    from headwater.cli.pipeline.topic_creation import topics_creator
    from headwater.pipelines.definition.plan import make_plan

    topics_creator(admin)([topic for topic in make_plan(loaded).topics if topic.name == SOURCE])
    there = sum(offsets.latest for offsets in admin.offsets(SOURCE))
    if there == flights.FLIGHTS:
        show.line(f"topic {SOURCE} has its {there:,} records already")
        return
    if there:
        raise CliError(
            "demo", f"topic {SOURCE} has {there:,} records of something else", "give an empty folder with --data"
        )
    show.line(f"producing {flights.FLIGHTS:,} flights to topic {SOURCE}, in order of departure, keyed by tail number")
    records = flights.records(flights.flights_table(data))
    try:
        with show.produced(flights.FLIGHTS) as on_progress:
            count = produce.produce(admin.bootstrap_servers, SOURCE, records, on_progress, security)
    except produce.ProduceFailed as error:
        raise CliError("demo", str(error), exit_code=EXIT_FAILED) from None
    show.line(f"{count:,} records acknowledged")


def _queries(spark: SparkSession, bootstrap_servers: Brokers, loaded: Loaded) -> None:
    from headwater.cli.sql.tables import print_table
    from headwater.pipelines.analysis.analysis import analyse
    from headwater.pipelines.sql.lake_tables import delta_tables
    from headwater.pipelines.sql.relations import Known, Relations
    from headwater.pipelines.sql.statement import analysed
    from headwater.pipelines.sql.topic_names import TopicNames
    from headwater.pipelines.sql_text.scanner import statements

    topics = TopicNames(lambda: ["delays", "rising", f"{SOURCE}.dead_letters"])
    columns = analyse(spark, loaded, bootstrap_servers).columns
    tables = {ARCHIVE: delta_tables(loaded)[SOURCE]}
    relations = Relations(spark, bootstrap_servers, topics, Known(columns, loaded, tables))
    for title, query in QUERIES:
        frame = analysed(spark, relations, statements(query)[0])
        print_table(frame.columns, [tuple(row) for row in frame.collect()], title)


def _prove(
    spark: SparkSession, bootstrap_servers: Brokers, folders: Folders, admin: TopicAdmin, late_rows: int
) -> bool:
    from headwater.cli.sql.tables import print_table

    offsets = [(o.partition, o.earliest, o.latest) for o in admin.offsets(SOURCE)]
    table = os.path.join(folders.lake, "flights")
    evidence = proof.gather(spark, bootstrap_servers, table, SOURCE, offsets, late_rows)
    found = proof.checks(evidence, flights.FLIGHTS)
    rows = [(check.statement, check.observed, "yes" if check.holds else "NO") for check in found]
    print_table(["proof", "found", "holds"], rows)
    return proof.all_hold(found)
