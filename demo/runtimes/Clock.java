// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Instant;

/** For each line of input that names a call, prints the nanoseconds that it takes. */
public class Clock {
    private static final int READS = 5_000;

    // The results, so that no call is optimised away.
    private static long seen;

    private static void read(String call) {
        switch (call) {
            case "System.nanoTime()" -> {
                for (int i = 0; i < READS; i++) seen += System.nanoTime();
            }
            case "Instant.now()" -> {
                for (int i = 0; i < READS; i++) seen += Instant.now().getNano();
            }
            default -> throw new IllegalArgumentException(call);
        }
    }

    public static void main(String[] arguments) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String call; (call = input.readLine()) != null; ) {
            long begun = System.nanoTime();
            read(call);
            System.out.println((System.nanoTime() - begun) / (double) READS);
        }
    }
}
