// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the tracepoints. The functions that Rust calls (see trace.rs) are made with them.
 */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "verbena_trace.h"
