import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.BufferSupplier;

/**
 * Kafka's own record classes, asked over stdin and stdout (see kafka_java.py). Compiled by Janino, which knows
 * no lambdas and infers no types.
 *
 * A request is a text, the operation, and two byte strings, each behind its length; so is the answer: whether it
 * worked, and a byte string.
 */
public class KafkaJudge {
    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        while (true) {
            String operation;
            try {
                operation = in.readUTF();
            } catch (EOFException end) {
                return;
            }
            byte[] first = new byte[in.readInt()];
            in.readFully(first);
            byte[] second = new byte[in.readInt()];
            in.readFully(second);
            byte[] answer;
            boolean worked = true;
            try {
                answer = answer(operation, first, second);
            } catch (Throwable error) {
                worked = false;
                answer = error.toString().getBytes(StandardCharsets.UTF_8);
            }
            out.writeBoolean(worked);
            out.writeInt(answer.length);
            out.write(answer);
            out.flush();
        }
    }

    static byte[] answer(String operation, byte[] first, byte[] second) throws Exception {
        if (operation.equals("describe")) {
            return describe(first).getBytes(StandardCharsets.UTF_8);
        }
        if (operation.equals("filter")) {
            return filter(first, new String(second, StandardCharsets.UTF_8).split("\n"));
        }
        if (operation.equals("build")) {
            return build(new String(first, StandardCharsets.UTF_8).split("\n"));
        }
        if (operation.equals("seek")) {
            return seek(first, new String(second, StandardCharsets.UTF_8).split("\n"));
        }
        if (operation.equals("consume")) {
            String text = new String(first, StandardCharsets.UTF_8);
            return consume(text.split("\n"), new String(second, StandardCharsets.UTF_8).split("\n"));
        }
        throw new IllegalArgumentException(operation);
    }

    /**
     * What a consumer gets from a broker. Lines of the question: servers, topic, isolation level, and the offset at
     * which to stop; lines of starts: offsets. For each start a line: the first and the last offset the broker
     * tells, where the consumer stands in the end, and the offsets it was given.
     */
    static byte[] consume(String[] question, String[] starts) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", question[0]);
        settings.put("isolation.level", question[2]);
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", "250");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        long stop = Long.parseLong(question[3]);
        TopicPartition partition = new TopicPartition(question[1], 0);
        KafkaConsumer consumer = new KafkaConsumer(settings);
        StringBuilder text = new StringBuilder();
        try {
            consumer.assign(Collections.singletonList(partition));
            List partitions = Collections.singletonList(partition);
            Object earliest = consumer.beginningOffsets(partitions).get(partition);
            Object latest = consumer.endOffsets(partitions).get(partition);
            for (int i = 0; i < starts.length; i++) {
                consumer.seek(partition, Long.parseLong(starts[i]));
                StringBuilder offsets = new StringBuilder();
                long patience = System.currentTimeMillis() + 10000;
                while (consumer.position(partition) < stop && System.currentTimeMillis() < patience) {
                    Iterator records = ((ConsumerRecords) consumer.poll(Duration.ofMillis(200))).iterator();
                    while (records.hasNext()) {
                        offsets.append(' ').append(((ConsumerRecord) records.next()).offset());
                    }
                }
                text.append(earliest).append(' ').append(latest).append(' ');
                text.append(consumer.position(partition)).append(offsets).append('\n');
            }
        } finally {
            consumer.close();
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Where a broker finds what it looks for in a segment. A line asks `offset O P`, for the batch with the offset
     * O, or `time T P B`, for the first record with at least the timestamp T at or behind the offset B; looked for
     * from the position P of the segment on. The answer is an offset, and for the first its position.
     */
    static byte[] seek(byte[] log, String[] lines) throws Exception {
        File file = File.createTempFile("segment", ".log");
        try {
            java.nio.file.Files.write(file.toPath(), log, new java.nio.file.OpenOption[0]);
            FileRecords records = FileRecords.open(file);
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < lines.length; i++) {
                String[] words = lines[i].split(" ");
                int position = Integer.parseInt(words[2]);
                long wanted = Long.parseLong(words[1]);
                if (words[0].equals("offset")) {
                    FileRecords.LogOffsetPosition found = records.searchForOffsetFromPosition(wanted, position);
                    text.append(found == null ? "none" : found.offset + " " + found.position).append('\n');
                } else {
                    FileRecords.TimestampAndOffset found =
                        records.searchForTimestamp(wanted, position, Long.parseLong(words[3]));
                    text.append(found == null ? "none" : "" + found.offset).append('\n');
                }
            }
            records.close();
            return text.toString().getBytes(StandardCharsets.UTF_8);
        } finally {
            file.delete();
        }
    }

    /** A line for each batch and record, and one for bytes that are none. */
    static String describe(byte[] log) {
        StringBuilder text = new StringBuilder();
        int size = 0;
        Iterator batches = MemoryRecords.readableRecords(ByteBuffer.wrap(log)).batches().iterator();
        while (batches.hasNext()) {
            DefaultRecordBatch batch = (DefaultRecordBatch) batches.next();
            batch.ensureValid();
            size += batch.sizeInBytes();
            java.util.OptionalLong horizon = batch.deleteHorizonMs();
            text.append("batch ").append(batch.baseOffset()).append(' ').append(batch.lastOffset());
            text.append(' ').append(batch.countOrNull()).append(' ').append(batch.compressionType().name);
            text.append(' ').append(batch.producerId()).append(' ').append(batch.producerEpoch());
            text.append(' ').append(batch.baseSequence()).append(' ').append(batch.partitionLeaderEpoch());
            text.append(' ').append(batch.maxTimestamp()).append(' ').append(batch.timestampType().name);
            text.append(' ').append(batch.isTransactional()).append(' ').append(batch.isControlBatch());
            text.append(' ').append(horizon.isPresent() ? horizon.getAsLong() : -1L).append('\n');
            Iterator records = batch.iterator();
            while (records.hasNext()) {
                record(text, (org.apache.kafka.common.record.internal.Record) records.next());
            }
        }
        if (size != log.length) {
            text.append("trailing ").append(log.length - size).append('\n');
        }
        return text.toString();
    }

    static void record(StringBuilder text, org.apache.kafka.common.record.internal.Record record) {
        text.append("record ").append(record.offset()).append(' ').append(record.timestamp());
        text.append(' ').append(hex(record.key())).append(' ').append(hex(record.value()));
        Header[] headers = record.headers();
        for (int i = 0; i < headers.length; i++) {
            byte[] value = headers[i].value();
            byte[] name = headers[i].key().getBytes(StandardCharsets.UTF_8);
            text.append(' ').append(hex(ByteBuffer.wrap(name))).append('=');
            text.append(hex(value == null ? null : ByteBuffer.wrap(value)));
        }
        text.append('\n');
    }

    static String hex(ByteBuffer bytes) {
        if (bytes == null) {
            return "-";
        }
        StringBuilder text = new StringBuilder("x");
        ByteBuffer left = ByteBuffer.allocate(bytes.remaining());
        left.put(bytes);
        left.flip();
        while (left.hasRemaining()) {
            int value = left.get() & 255;
            text.append(Character.forDigit(value >> 4, 16)).append(Character.forDigit(value & 15, 16));
        }
        return text.toString();
    }

    static byte[] unhex(String text) {
        if (text.equals("-")) {
            return null;
        }
        byte[] bytes = new byte[(text.length() - 1) / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(1 + 2 * i, 3 + 2 * i), 16);
        }
        return bytes;
    }

    /**
     * What Kafka's record filter keeps. The first line has the time and the retention in milliseconds, each other
     * one is about a batch: `RETAIN_EMPTY` or `DELETE_EMPTY`, whether it is the marker of an empty transaction,
     * and a 0 or 1 for each record.
     */
    static byte[] filter(byte[] log, String[] lines) {
        String[] times = lines[0].split(" ");
        Filter filter = new Filter(Long.parseLong(times[0]), Long.parseLong(times[1]), lines);
        ByteBuffer target = ByteBuffer.allocate(4 * log.length + 100000);
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(log));
        ByteBuffer result = records.filterTo(filter, target, BufferSupplier.NO_CACHING).outputBuffer();
        result.flip();
        byte[] bytes = new byte[result.remaining()];
        result.get(bytes);
        return bytes;
    }

    static class Filter extends MemoryRecords.RecordFilter {
        private final String[] lines;
        private int line = 0;
        private int record = 0;

        Filter(long now, long retention, String[] lines) {
            super(now, retention);
            this.lines = lines;
        }

        protected MemoryRecords.RecordFilter.BatchRetentionResult checkBatchRetention(RecordBatch batch) {
            line++;
            record = 0;
            String[] words = lines[line].split(" ");
            return new MemoryRecords.RecordFilter.BatchRetentionResult(
                MemoryRecords.RecordFilter.BatchRetention.valueOf(words[0]), words[1].equals("1"));
        }

        protected boolean shouldRetainRecord(
            RecordBatch batch, org.apache.kafka.common.record.internal.Record kept) {
            return lines[line].split(" ")[2].charAt(record++) == '1';
        }
    }

    /**
     * A log by Kafka's builder. A line is a batch: base offset, codec, time the broker appended it or -1,
     * producer id, epoch, sequence, transactional, leader epoch. Or a record of it: offset, timestamp, key,
     * value. Or a marker: offset, timestamp, leader epoch, producer id, epoch, COMMIT or ABORT.
     */
    static byte[] build(String[] lines) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        MemoryRecordsBuilder open = null;
        for (int i = 0; i <= lines.length; i++) {
            String[] words = i < lines.length ? lines[i].split(" ") : new String[] {"end"};
            if (words[0].equals("record")) {
                open.appendWithOffset(
                    Long.parseLong(words[1]), Long.parseLong(words[2]), unhex(words[3]), unhex(words[4]),
                    new Header[] {new RecordHeader("h", new byte[] {1})});
                continue;
            }
            if (open != null) {
                append(out, open.build().buffer());
                open = null;
            }
            if (words[0].equals("batch")) {
                long appended = Long.parseLong(words[3]);
                open = MemoryRecords.builder(
                    ByteBuffer.allocate(1 << 20), RecordBatch.CURRENT_MAGIC_VALUE,
                    compression(words[2]),
                    appended < 0 ? TimestampType.CREATE_TIME : TimestampType.LOG_APPEND_TIME,
                    Long.parseLong(words[1]), appended, Long.parseLong(words[4]), Short.parseShort(words[5]),
                    Integer.parseInt(words[6]), words[7].equals("1"), false, Integer.parseInt(words[8]));
            } else if (words[0].equals("marker")) {
                append(out, MemoryRecords.withEndTransactionMarker(
                    Long.parseLong(words[1]), Long.parseLong(words[2]), Integer.parseInt(words[3]),
                    Long.parseLong(words[4]), Short.parseShort(words[5]),
                    new EndTransactionMarker(ControlRecordType.valueOf(words[6]), 0)).buffer());
            }
        }
        return out.toByteArray();
    }

    static Compression compression(String name) {
        if (name.equals("gzip")) {
            return (Compression) new GzipCompression.Builder().build();
        }
        if (name.equals("snappy")) {
            return (Compression) new SnappyCompression.Builder().build();
        }
        if (name.equals("lz4")) {
            return (Compression) new Lz4Compression.Builder().build();
        }
        if (name.equals("zstd")) {
            return (Compression) new ZstdCompression.Builder().build();
        }
        return (Compression) new NoCompression.Builder().build();
    }

    static void append(ByteArrayOutputStream out, ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        out.write(copy, 0, copy.length);
    }
}
