/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The list of tests.
 */
#include "tests.h"

const struct test tests[] = {
    {"identity", "asks the first process for its identities", 4, test_identity, 1},
    {"fork", "children of fork, of clone and of each other", 6, test_fork, 0},
    {"vfork", "children that share their parent's memory while its threads ask", 5, test_vfork, 0},
    {"clone-vm", "processes that share memory and run at the same time", 4, test_clone_vm, 0},
    {"spawn", "programs started by posix_spawn", 2, test_spawn, 0},
    {"exec", "execve by the only thread, by the first one and by others", 2, test_exec, 0},
    {"threads", "threads that start and end", 6, test_threads, 0},
    {"first-thread", "a first thread that ends before the others", 3, test_first_thread, 0},
    {"credentials", "libc's changes of user and group ids, in all threads", 6, test_credentials, 0},
    {"thread-credentials", "raw changes of user and group ids, in one thread", 5, test_thread_credentials, 0},
    {"groups", "setpgid of the process itself and of a child, setsid", 6, test_groups, 0},
    {"parent", "parents that end", 3, test_parent, 0},
    {"user-namespace", "user namespaces, and writes to their maps", 2, test_user_namespace, 0},
    {"pid-namespace", "children in PID namespaces", 2, test_pid_namespace, 0},
    {"setns", "namespaces of another process", 2, test_setns, 0},
    {"descriptors", "one descriptor that is opened, closed and replaced while threads read it", 8, test_descriptors, 0},
    {"descriptor-kinds", "duplicates, passed, unreadable and out of range descriptors", 4, test_descriptor_kinds, 0},
    {"descriptor-tables", "tables of descriptors shared with, and separated from, others", 3, test_tables, 0},
    {"pointers", "results that cannot be written", 4, test_pointers, 0},
    {"memory", "memory that is unmapped or protected while results are written to it", 5, test_memory, 0},
    {"arguments", "sizes, flags and numbers, valid and not", 4, test_arguments, 0},
    {"registers", "registers, flags and the red zone over a call", 4, test_registers, 0},
    {"signals", "calls in handlers that interrupt calls, and jumps out of them", 6, test_signals, 0},
    {"integrity", "processes that write their own image and the pages beside it", 2, test_integrity, 0},
    {"random-unique", "random bytes of threads: none is handed out twice", 10, test_random_unique, 0},
    {"random-fork", "random bytes of parents and children, also by fork in a handler", 10, test_random_fork, 0},
    {"random-statistics", "random bytes are random", 4, test_random_statistics, 0},
};
const unsigned tests_count = sizeof(tests) / sizeof(tests[0]);

const struct child_program child_programs[] = {
    {"identity", program_identity},
    {"descriptor", program_descriptor},
};
const unsigned child_programs_count = sizeof(child_programs) / sizeof(child_programs[0]);
