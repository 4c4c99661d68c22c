import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Arrays;
import java.util.BitSet;
import java.util.zip.CRC32;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.BufferSupplier;

/**
 * Kafka's own record filter over the segments of a folder: `KafkaBench FOLDER DEAD PIECE_BYTES WARM_RECORDS`. It
 * is told which offsets go, which costs it a look into a bit set: less than the map of keys that a broker asks.
 * Passes are repeated until the JVM has filtered WARM_RECORDS records; the first one also takes a checksum of
 * what it writes, the last one is measured. The last line of the output is JSON. Compiled by Janino, which knows
 * no lambdas and infers no types.
 */
public class KafkaBench {
    static BitSet dead = new BitSet();
    static long firstOffset;
    static long records;
    static long written;
    static CRC32 checksum;

    public static void main(String[] arguments) throws Exception {
        File[] files = new File(arguments[0]).listFiles();
        Arrays.sort(files);
        firstOffset = Long.parseLong(files[0].getName().substring(0, 20));
        readDead(new File(arguments[1]));
        int pieceBytes = Integer.parseInt(arguments[2]);
        long warm = Long.parseLong(arguments[3]);
        checksum = new CRC32();
        pass(files, pieceBytes);
        long crc = checksum.getValue();
        checksum = null;
        long done = records;
        while (done < warm) {
            pass(files, pieceBytes);
            done += records;
        }
        com.sun.management.OperatingSystemMXBean system =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        System.gc();
        long cpu = system.getProcessCpuTime();
        long wall = System.nanoTime();
        pass(files, pieceBytes);
        wall = System.nanoTime() - wall;
        cpu = system.getProcessCpuTime() - cpu;
        System.out.println("{\"records\": " + records + ", \"wall_s\": " + wall / 1e9 + ", \"cpu_s\": " + cpu / 1e9
            + ", \"bytes\": " + written + ", \"crc\": " + crc + "}");
    }

    static void readDead(File file) throws Exception {
        DataInputStream in = new DataInputStream(new java.io.BufferedInputStream(new FileInputStream(file)));
        long count = file.length() / 8;
        for (long i = 0; i < count; i++) {
            dead.set((int) (Long.reverseBytes(in.readLong()) - firstOffset));
        }
        in.close();
    }

    static void pass(File[] files, int pieceBytes) throws Exception {
        records = 0;
        written = 0;
        ByteBuffer piece = ByteBuffer.allocate(pieceBytes);
        ByteBuffer target = ByteBuffer.allocate(pieceBytes + pieceBytes / 2);
        BufferSupplier supplier = BufferSupplier.create();
        Filter filter = new Filter();
        for (int i = 0; i < files.length; i++) {
            FileChannel channel = new FileInputStream(files[i]).getChannel();
            piece.clear();
            while (channel.read(piece) >= 0 || piece.position() > 0) {
                if (piece.hasRemaining() && channel.position() < channel.size()) {
                    continue;
                }
                piece.flip();
                MemoryRecords found = MemoryRecords.readableRecords(piece);
                target.clear();
                MemoryRecords.FilterResult result = found.filterTo(filter, target, supplier);
                records += result.messagesRead();
                ByteBuffer output = result.outputBuffer();
                written += output.position();
                if (checksum != null) {
                    output.flip();
                    checksum.update(output);
                }
                piece.position(result.bytesRead());
                piece.compact();
            }
            channel.close();
        }
    }

    static class Filter extends MemoryRecords.RecordFilter {
        Filter() {
            super(1800000000000L, 86400000L);
        }

        protected MemoryRecords.RecordFilter.BatchRetentionResult checkBatchRetention(RecordBatch batch) {
            batch.ensureValid();
            return new MemoryRecords.RecordFilter.BatchRetentionResult(
                MemoryRecords.RecordFilter.BatchRetention.DELETE_EMPTY, false);
        }

        protected boolean shouldRetainRecord(
            RecordBatch batch, org.apache.kafka.common.record.internal.Record record) {
            return !dead.get((int) (record.offset() - firstOffset));
        }
    }
}
