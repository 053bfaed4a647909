// Sends a plan (plan.py) with the Java client: java -cp 'libs/*' ProducePlan.java BOOTSTRAP PLAN.json
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.Base64;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ProducePlan {
    // Longer than it takes to send a step: a step is a batch.
    private static final String LINGER_MS = "2000";

    public static void main(String[] arguments) throws Exception {
        for (JsonNode topic : new ObjectMapper().readTree(new File(arguments[1]))) {
            produce(arguments[0], topic);
        }
    }

    private static void produce(String bootstrap, JsonNode topic) {
        String name = topic.get("topic").asText();
        String mode = topic.get("mode").asText();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", LINGER_MS);
        settings.put("acks", "all");
        settings.put("compression.type", topic.get("codec").asText());
        settings.put("enable.idempotence", String.valueOf(!mode.equals("plain")));
        if (mode.equals("transactional")) {
            settings.put("transactional.id", name);
        }
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            if (mode.equals("transactional")) {
                producer.initTransactions();
            }
            for (JsonNode step : topic.get("steps")) {
                String end = step.get("end").asText();
                if (!end.equals("flush")) {
                    producer.beginTransaction();
                }
                for (JsonNode record : step.get("records")) {
                    producer.send(toRecord(name, record));
                }
                producer.flush();
                if (end.equals("commit")) {
                    producer.commitTransaction();
                } else if (end.equals("abort")) {
                    producer.abortTransaction();
                }
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> toRecord(String topic, JsonNode record) {
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(
            topic, 0, record.get("timestamp").asLong(), decoded(record.get("key")), decoded(record.get("value")));
        for (JsonNode header : record.get("headers")) {
            made.headers().add(header.get(0).asText(), decoded(header.get(1)));
        }
        return made;
    }

    private static byte[] decoded(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }
}
