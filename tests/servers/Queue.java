// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Instant;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;

/**
 * Queue PORT: a broker of records in batches, as Kafka is one, with its producers and consumers, all over loopback.
 *
 * <p>A producer stamps each record with the time of day and with nanoTime, and sends batches; the broker measures the
 * parts of each request by nanoTime, as Kafka's request metrics do; a consumer computes the latency of each record.
 *
 * <p>A connection begins with a byte: P a producer's, C a consumer's; T answers the nanoseconds since 1970; L, with a number
 * of seconds, loads the queue for that long, and answers the number of records consumed and of failures: a record that is
 * lost, repeated or out of order, or that arrives before it was sent.
 */
public class Queue {
    private static final int PARTITIONS = 2;
    private static final int RECORDS = 100;
    private static final int PAYLOAD = 100;
    private static final int DEPTH = 16;

    private record Batch(long[] sequences, long[] created, long[] stamps, byte[] payload) {}

    private final int port;
    private final BlockingQueue<Batch>[] partitions;
    /** Nanoseconds of requests: reading, waiting for the partition, answering, in all. */
    private final LongAdder reading = new LongAdder(), waiting = new LongAdder(), answering = new LongAdder(), total = new LongAdder();

    @SuppressWarnings("unchecked")
    private Queue(int port) {
        this.port = port;
        partitions = new BlockingQueue[PARTITIONS];
        for (int each = 0; each < PARTITIONS; each++) {
            partitions[each] = new ArrayBlockingQueue<>(DEPTH);
        }
    }

    public static void main(String[] args) throws Exception {
        Queue queue = new Queue(Integer.parseInt(args[0]));
        try (ServerSocket listener = new ServerSocket(queue.port, 50, InetAddress.getByName("127.0.0.1"))) {
            while (true) {
                Socket socket = listener.accept();
                Thread thread = new Thread(() -> queue.serve(socket));
                thread.setDaemon(true);
                thread.start();
            }
        }
    }

    private void serve(Socket socket) {
        try (socket; Connection connection = new Connection(socket)) {
            switch (connection.in.readByte()) {
                case 'P' -> store(connection);
                case 'C' -> deliver(connection);
                case 'L' -> connection.answer(load(connection.in.readLong()));
                case 'T' -> {
                    Instant now = Instant.now();
                    connection.answer(now.getEpochSecond() * 1_000_000_000L + now.getNano());
                }
                default -> { }
            }
        } catch (IOException | InterruptedException ended) {
            // The client has closed the connection.
        }
    }

    /** Handles a producer's requests. */
    private void store(Connection connection) throws IOException, InterruptedException {
        BlockingQueue<Batch> partition = partitions[connection.in.readInt()];
        while (true) {
            int length = connection.in.readInt();
            long began = System.nanoTime();
            Batch batch = connection.read(length);
            long read = System.nanoTime();
            partition.put(batch);
            long stored = System.nanoTime();
            connection.answer(length);
            measure(began, read, stored);
        }
    }

    /** Handles a consumer's requests. */
    private void deliver(Connection connection) throws IOException, InterruptedException {
        BlockingQueue<Batch> partition = partitions[connection.in.readInt()];
        while (true) {
            connection.in.readByte();
            long began = System.nanoTime();
            Batch batch = partition.poll(100, TimeUnit.MILLISECONDS);
            long taken = System.nanoTime();
            connection.write(batch);
            measure(began, began, taken);
        }
    }

    private void measure(long began, long read, long stored) {
        long now = System.nanoTime();
        reading.add(read - began);
        waiting.add(stored - read);
        answering.add(now - stored);
        total.add(now - began);
    }

    /** Returns the number of records consumed, and of failures. */
    private long[] load(long seconds) throws InterruptedException {
        AtomicLong consumed = new AtomicLong(), failures = new AtomicLong();
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        Thread[] threads = new Thread[2 * PARTITIONS];
        for (int each = 0; each < PARTITIONS; each++) {
            int partition = each;
            AtomicLong sent = new AtomicLong(-1);
            threads[each] = new Thread(() -> produce(partition, end, sent, failures));
            threads[PARTITIONS + each] = new Thread(() -> consume(partition, sent, consumed, failures));
        }
        for (Thread each : threads) {
            each.start();
        }
        for (Thread each : threads) {
            each.join();
        }
        return new long[] {consumed.get(), failures.get()};
    }

    private void produce(int partition, long end, AtomicLong sent, AtomicLong failures) {
        long sequence = 0, blocked = 0;
        try (Socket socket = connect(); Connection connection = new Connection(socket)) {
            connection.begin('P', partition);
            byte[] payload = new byte[RECORDS * PAYLOAD];
            for (long now = System.nanoTime(); now < end; ) {
                Batch batch = new Batch(new long[RECORDS], new long[RECORDS], new long[RECORDS], payload);
                for (int each = 0; each < RECORDS; each++) {
                    batch.sequences[each] = sequence++;
                    batch.created[each] = System.nanoTime();
                    batch.stamps[each] = System.currentTimeMillis();
                }
                connection.write(batch);
                if (connection.in.readLong() != RECORDS) {
                    failures.incrementAndGet();
                }
                long answered = System.nanoTime();
                blocked += answered - now;
                now = answered;
            }
        } catch (IOException lost) {
            failures.incrementAndGet();
        }
        if (blocked < 0) {
            failures.incrementAndGet();
        }
        sent.set(sequence);
    }

    private void consume(int partition, AtomicLong sent, AtomicLong consumed, AtomicLong failures) {
        long next = 0, latency = 0;
        try (Socket socket = connect(); Connection connection = new Connection(socket)) {
            connection.begin('C', partition);
            while (next != sent.get()) {
                connection.out.writeByte(0);
                connection.out.flush();
                Batch batch = connection.read(connection.in.readInt());
                for (int each = 0; each < batch.sequences.length; each++) {
                    long age = System.nanoTime() - batch.created[each];
                    latency += age;
                    if (batch.sequences[each] != next++ || age < 0) {
                        failures.incrementAndGet();
                    }
                }
            }
        } catch (IOException lost) {
            failures.incrementAndGet();
        }
        if (latency < 0) {
            failures.incrementAndGet();
        }
        consumed.addAndGet(next);
    }

    private Socket connect() throws IOException {
        return new Socket(InetAddress.getByName("127.0.0.1"), port);
    }

    /** A connection with the frames that it carries. */
    private static final class Connection implements AutoCloseable {
        private final DataInputStream in;
        private final DataOutputStream out;

        Connection(Socket socket) throws IOException {
            socket.setTcpNoDelay(true);
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
            out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream(), 1 << 16));
        }

        void begin(int kind, int partition) throws IOException {
            out.writeByte(kind);
            out.writeInt(partition);
        }

        Batch read(int length) throws IOException {
            Batch batch = new Batch(new long[length], new long[length], new long[length], new byte[length * PAYLOAD]);
            for (int each = 0; each < length; each++) {
                batch.sequences[each] = in.readLong();
                batch.created[each] = in.readLong();
                batch.stamps[each] = in.readLong();
                in.readFully(batch.payload, each * PAYLOAD, PAYLOAD);
            }
            return batch;
        }

        /** Writes a batch; null is one without records. */
        void write(Batch batch) throws IOException {
            int length = batch == null ? 0 : batch.sequences.length;
            out.writeInt(length);
            for (int each = 0; each < length; each++) {
                out.writeLong(batch.sequences[each]);
                out.writeLong(batch.created[each]);
                out.writeLong(batch.stamps[each]);
                out.write(batch.payload, each * PAYLOAD, PAYLOAD);
            }
            out.flush();
        }

        void answer(long... values) throws IOException {
            for (long each : values) {
                out.writeLong(each);
            }
            out.flush();
        }

        @Override
        public void close() throws IOException {
            out.close();
        }
    }
}
