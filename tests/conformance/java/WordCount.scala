import java.util.{Arrays, Properties}
import java.util.concurrent.CountDownLatch
import org.apache.kafka.common.serialization.Serdes
import org.apache.kafka.streams.{KafkaStreams, StreamsBuilder, StreamsConfig}
import org.apache.kafka.streams.kstream.{Consumed, Grouped, KeyValueMapper, Produced, ValueMapper}

/** Counts words exactly once, from a topic into another: BOOTSTRAP APPLICATION SOURCE TARGET STATE_FOLDER. */
object WordCount {
  def main(arguments: Array[String]): Unit = {
    val Array(bootstrap, application, source, target, folder) = arguments
    val properties = new Properties()
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap)
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, application)
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2)
    properties.put(StreamsConfig.STATE_DIR_CONFIG, folder)
    properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, "-1")
    properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100")
    properties.put("auto.offset.reset", "earliest")
    // So long does the group wait for the one that was killed.
    properties.put("session.timeout.ms", "10000")

    val split: ValueMapper[String, java.lang.Iterable[String]] = line => Arrays.asList(line.split(" "): _*)
    val byWord: KeyValueMapper[String, String, String] = (_, word) => word
    val builder = new StreamsBuilder()
    builder
      .stream(source, Consumed.`with`(Serdes.String(), Serdes.String()))
      .flatMapValues[String](split)
      .groupBy[String](byWord, Grouped.`with`(Serdes.String(), Serdes.String()))
      .count()
      .toStream()
      .to(target, Produced.`with`(Serdes.String(), Serdes.Long()))

    val streams = new KafkaStreams(builder.build(), properties)
    val ended = new CountDownLatch(1)
    Runtime.getRuntime.addShutdownHook(new Thread(() => streams.close()))
    streams.setStateListener((state, _) => {
      println(s"state $state")
      if (state == KafkaStreams.State.ERROR) ended.countDown()
    })
    streams.start()
    ended.await()
    System.exit(1)
  }
}
