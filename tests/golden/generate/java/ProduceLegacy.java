// Sends records with an old Java client (0.9.0.1 or 0.10.2.2):
//   java -cp 'libs/*' ProduceLegacy.java BOOTSTRAP TOPIC CODEC RECORDS.txt
// A line is "timestamp key value", key and value in base64, "-" for null and "=" for empty; a blank line ends a batch.
import java.lang.reflect.Constructor;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ProduceLegacy {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("compression.type", arguments[2]);
        settings.put("acks", "all");
        settings.put("linger.ms", "2000");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (String line : Files.readAllLines(Path.of(arguments[3]))) {
                if (line.isEmpty()) {
                    producer.flush();
                } else {
                    String[] fields = line.split(" ");
                    long timestamp = Long.parseLong(fields[0]);
                    producer.send(toRecord(arguments[1], timestamp, decoded(fields[1]), decoded(fields[2])));
                }
            }
            producer.flush();
        }
    }

    // 0.9 has no timestamps: its record has a constructor less.
    @SuppressWarnings("unchecked")
    private static ProducerRecord<byte[], byte[]> toRecord(String topic, long timestamp, byte[] key, byte[] value)
            throws ReflectiveOperationException {
        for (Constructor<?> constructor : ProducerRecord.class.getConstructors()) {
            if (constructor.getParameterCount() == 5) {
                return (ProducerRecord<byte[], byte[]>) constructor.newInstance(topic, 0, timestamp, key, value);
            }
        }
        return new ProducerRecord<>(topic, 0, key, value);
    }

    private static byte[] decoded(String field) {
        if (field.equals("-")) {
            return null;
        }
        return field.equals("=") ? new byte[0] : Base64.getDecoder().decode(field);
    }
}
