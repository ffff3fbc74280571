// SPDX-License-Identifier: Apache-2.0 OR MIT

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongSupplier;

/** Clock COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went backwards. */
final class Clock {
	private static final Map<String, LongSupplier> CLOCKS = new LinkedHashMap<>();

	static {
		CLOCKS.put("REALTIME", System::currentTimeMillis);
		CLOCKS.put("MONOTONIC", System::nanoTime);
	}

	private static void readMany(String name, long count) {
		LongSupplier clock = CLOCKS.get(name);
		long startNs = System.nanoTime();
		long last = clock.getAsLong();
		for (long i = 0; i < count; i++) {
			long now = clock.getAsLong();
			if (now < last) {
				System.err.printf("%s went backwards: %d after %d%n", name, now, last);
				System.exit(3);
			}
			last = now;
		}
		System.out.printf("%s %.1f%n", name, (System.nanoTime() - startNs) / (double) count);
	}

	public static void main(String[] args) {
		List<String> chosen = List.of(args).subList(Math.min(1, args.length), args.length);
		if (args.length == 0 || !args[0].matches("[1-9][0-9]*") || !CLOCKS.keySet().containsAll(chosen)) {
			System.err.println("usage: Clock COUNT [CLOCK...]\nclocks: " + String.join(" ", CLOCKS.keySet()));
			System.exit(2);
		}
		for (String name : chosen.isEmpty() ? CLOCKS.keySet() : chosen) {
			readMany(name, Long.parseLong(args[0]));
		}
	}

	private Clock() {}
}
