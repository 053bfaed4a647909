// Reads topics with the Java consumer and prints them as JSON:
//   java -cp 'libs/*' ReadBack.java BOOTSTRAP TOPIC...
// {"topic": {"records": [...], "committed": [offsets that a read_committed consumer gets]}}
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadBack {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        ObjectNode result = JSON.createObjectNode();
        for (int i = 1; i < arguments.length; i++) {
            ObjectNode topic = result.putObject(arguments[i]);
            ArrayNode records = topic.putArray("records");
            ArrayNode committed = topic.putArray("committed");
            read(arguments[0], arguments[i], "read_uncommitted", record -> records.add(toJson(record)));
            read(arguments[0], arguments[i], "read_committed", record -> committed.add(record.offset()));
        }
        System.out.println(JSON.writeValueAsString(result));
    }

    private interface Sink {
        void accept(ConsumerRecord<byte[], byte[]> record);
    }

    private static void read(String bootstrap, String topic, String isolation, Sink sink) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofMillis(200)).forEach(sink::accept);
            }
        }
    }

    private static ObjectNode toJson(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode made = JSON.createObjectNode();
        made.put("offset", record.offset());
        made.put("timestamp", record.timestamp());
        made.put("timestamp_type", record.timestampType().toString());
        made.put("key", encoded(record.key()));
        made.put("value", encoded(record.value()));
        ArrayNode headers = made.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(encoded(header.value()));
        }
        return made;
    }

    private static String encoded(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
