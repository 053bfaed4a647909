// Prints the records of a .log file as JSON, read by the code that Kafka's broker and consumer read them with:
//   java -cp 'libs/*' ReadLogFile.java FILE.log
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.Base64;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.utils.Utils;

public class ReadLogFile {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        ArrayNode records = JSON.createArrayNode();
        try (FileRecords file = FileRecords.open(new File(arguments[0]), false)) {
            for (RecordBatch batch : file.batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    ObjectNode made = records.addObject();
                    made.put("offset", record.offset());
                    made.put("timestamp", record.timestamp());
                    made.put("timestamp_type", batch.timestampType().toString());
                    made.put("key", encoded(record.key()));
                    made.put("value", encoded(record.value()));
                    ArrayNode headers = made.putArray("headers");
                    for (Header header : record.headers()) {
                        byte[] value = header.value();
                        headers.addArray().add(header.key()).add(encoded(value == null ? null : ByteBuffer.wrap(value)));
                    }
                }
            }
        }
        System.out.println(JSON.writeValueAsString(records));
    }

    private static String encoded(ByteBuffer data) {
        return data == null ? null : Base64.getEncoder().encodeToString(Utils.toArray(data));
    }
}
