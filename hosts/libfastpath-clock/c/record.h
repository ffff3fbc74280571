/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* In place of core/image/vdso/record.h: no instance is made of a program's code, so nothing is recorded. */
#ifndef FASTPATH_RECORD_H
#define FASTPATH_RECORD_H

#define FP_RECORD(section, place)

#endif
