/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The tests, in the folder tests/.
 */
#ifndef TESTS_H
#define TESTS_H

#include "hosttest.h"

void test_identity(void);
void test_fork(void);
void test_vfork(void);
void test_clone_vm(void);
void test_spawn(void);
void test_exec(void);
void test_threads(void);
void test_first_thread(void);
void test_credentials(void);
void test_thread_credentials(void);
void test_groups(void);
void test_parent(void);
void test_user_namespace(void);
void test_pid_namespace(void);
void test_setns(void);
void test_descriptors(void);
void test_descriptor_kinds(void);
void test_tables(void);
void test_pointers(void);
void test_memory(void);
void test_arguments(void);
void test_registers(void);
void test_signals(void);
void test_integrity(void);
void test_random_unique(void);
void test_random_fork(void);
void test_random_statistics(void);

/* Programs that tests execute. */
void program_identity(char **arguments);
void program_descriptor(char **arguments);

#endif
