// SPDX-License-Identifier: Apache-2.0 OR MIT

/** Profiled SECONDS: reads a clock for so long. */
final class Profiled {
	private static void readClocks(long ns) {
		long begun = System.nanoTime();
		while (System.nanoTime() - begun < ns) {
		}
	}

	public static void main(String[] args) {
		readClocks(Long.parseLong(args[0]) * 1_000_000_000);
	}

	private Profiled() {}
}
