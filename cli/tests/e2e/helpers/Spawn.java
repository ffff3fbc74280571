// SPDX-License-Identifier: Apache-2.0 OR MIT

/** Spawn CMD [ARGS]: starts CMD with ProcessBuilder; exits as it does. */
final class Spawn {
	public static void main(String[] command) throws Exception {
		System.exit(new ProcessBuilder(command).inheritIO().start().waitFor());
	}
}
