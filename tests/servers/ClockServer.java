// SPDX-License-Identifier: Apache-2.0 OR MIT

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.concurrent.Executors;

/** ClockServer PORT: answers every request with the nanoseconds since 1970, and how long the answer took to make. */
public class ClockServer {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port), 0);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/", exchange -> {
            long began = System.nanoTime();
            Instant now = Instant.now();
            long ns = now.getEpochSecond() * 1_000_000_000L + now.getNano();
            byte[] answer = (ns + " " + (System.nanoTime() - began) + "\n").getBytes(StandardCharsets.US_ASCII);
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
    }
}
