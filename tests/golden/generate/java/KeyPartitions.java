import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Reads (partition count, key length, key) from stdin until it ends; writes (murmur2, partition) for each. */
public class KeyPartitions {
    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        while (true) {
            int partitions;
            try {
                partitions = in.readInt();
            } catch (EOFException end) {
                break;
            }
            byte[] key = new byte[in.readInt()];
            in.readFully(key);
            out.writeInt(Utils.murmur2(key));
            out.writeShort(BuiltInPartitioner.partitionForKey(key, partitions));
        }
        out.flush();
    }
}
