import java.io.File;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import javax.jms.BytesMessage;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.MessageConsumer;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQMessageProducer;
import org.apache.activemq.AsyncCallback;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/**
 * An ActiveMQ broker, and one client of a queue; a client prints the seconds that it took.
 *
 *   broker PORT FOLDER
 *   produce PORT QUEUE MESSAGES BYTES WINDOW
 *   consume PORT QUEUE MESSAGES PREFETCH
 */
public class ActiveMq {
    static final long LONGEST_WAIT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "broker" -> broker(Integer.parseInt(arguments[1]), new File(arguments[2]));
            case "produce", "consume" -> client(arguments);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    /** Messages on disk, synced once a second: the logs of this comparison do it less often, if at all. */
    static void broker(int port, File folder) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(folder, "kahadb"));
        store.setJournalDiskSyncStrategy("periodic");
        BrokerService broker = new BrokerService();
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.setDataDirectoryFile(folder);
        broker.setPersistenceAdapter(store);
        broker.getSystemUsage().getMemoryUsage().setPercentOfJvmHeap(70); // as in the file that ActiveMQ ships
        broker.addConnector("tcp://127.0.0.1:" + port);
        broker.start();
        broker.waitUntilStopped();
    }

    static void client(String[] arguments) throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("tcp://127.0.0.1:" + arguments[1]);
        factory.setWatchTopicAdvisories(false);
        int messages = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("consume")) {
            factory.getPrefetchPolicy().setQueuePrefetch(Integer.parseInt(arguments[4]));
        }
        ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        long begun = System.nanoTime();
        if (arguments[0].equals("produce")) {
            produce(session, arguments[2], messages, Integer.parseInt(arguments[4]), Integer.parseInt(arguments[5]));
        } else {
            consume(session, arguments[2], messages);
        }
        System.out.println((System.nanoTime() - begun) / 1e9);
        connection.close();
    }

    /** Up to the last acknowledgement; so many messages at most are not acknowledged. */
    static void produce(Session session, String queue, int messages, int bytes, int window) throws Exception {
        var producer = (ActiveMQMessageProducer) session.createProducer(session.createQueue(queue));
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        Semaphore room = new Semaphore(window);
        AtomicReference<JMSException> failure = new AtomicReference<>();
        AsyncCallback acknowledged = new AsyncCallback() {
            @Override
            public void onSuccess() {
                room.release();
            }

            @Override
            public void onException(JMSException error) {
                failure.set(error);
                room.release();
            }
        };
        Random letters = new Random(0);
        byte[] value = new byte[bytes];
        for (int number = 0; number < messages; number++) {
            for (int at = 0; at < bytes; at++) {
                value[at] = (byte) ('A' + letters.nextInt(26));
            }
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(value);
            room.acquire();
            producer.send(message, acknowledged);
        }
        room.acquire(window);
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    static void consume(Session session, String queue, int messages) throws Exception {
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        for (int number = 0; number < messages; number++) {
            if (consumer.receive(LONGEST_WAIT_MS) == null) {
                throw new IllegalStateException("no message for 30 s after " + number);
            }
        }
    }
}
