/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: events/verbena/ of the kernel's tracing. Texts come from the driver, which has the names from the ABI.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM verbena

#if !defined(VERBENA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define VERBENA_TRACE_H

#include <linux/tracepoint.h>
#include <rdma/ib_verbs.h>

#define verbena_trace_state(state)					\
	__print_symbolic(state, { IB_QPS_RESET, "RESET" }, { IB_QPS_INIT, "INIT" },	\
			 { IB_QPS_RTR, "RTR" }, { IB_QPS_RTS, "RTS" }, { IB_QPS_SQD, "SQD" },	\
			 { IB_QPS_SQE, "SQE" }, { IB_QPS_ERR, "ERR" })

/* A command was answered, or was not. */
TRACE_EVENT(verbena_command,
	TP_PROTO(const char *device, const char *opcode, unsigned int opcode_len, int error, u64 ns),
	TP_ARGS(device, opcode, opcode_len, error, ns),
	TP_STRUCT__entry(
		__string(device, device)
		__string_len(opcode, opcode, opcode_len)
		__field(int, error)
		__field(u64, ns)
	),
	TP_fast_assign(
		__assign_str(device);
		__assign_str(opcode);
		__entry->error = error;
		__entry->ns = ns;
	),
	TP_printk("device=%s opcode=%s error=%d ns=%llu", __get_str(device), __get_str(opcode),
		  __entry->error, __entry->ns)
);

/* The device reports an event of an object. */
TRACE_EVENT(verbena_event,
	TP_PROTO(const char *device, const char *type, unsigned int type_len, u32 number,
		 u32 syndrome),
	TP_ARGS(device, type, type_len, number, syndrome),
	TP_STRUCT__entry(
		__string(device, device)
		__string_len(type, type, type_len)
		__field(u32, number)
		__field(u32, syndrome)
	),
	TP_fast_assign(
		__assign_str(device);
		__assign_str(type);
		__entry->number = number;
		__entry->syndrome = syndrome;
	),
	TP_printk("device=%s type=%s number=%u syndrome=0x%04x", __get_str(device),
		  __get_str(type), __entry->number, __entry->syndrome)
);

/* A queue pair was moved from state to state. */
TRACE_EVENT(verbena_qp_state,
	TP_PROTO(const char *device, u32 qpn, u32 from, u32 to),
	TP_ARGS(device, qpn, from, to),
	TP_STRUCT__entry(
		__string(device, device)
		__field(u32, qpn)
		__field(u32, from)
		__field(u32, to)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->from = from;
		__entry->to = to;
	),
	TP_printk("device=%s qpn=%u from=%s to=%s", __get_str(device), __entry->qpn,
		  verbena_trace_state(__entry->from), verbena_trace_state(__entry->to))
);

/* The device begins to live, or does not any more. */
TRACE_EVENT(verbena_device,
	TP_PROTO(const char *device, const char *what, unsigned int what_len, u32 syndrome),
	TP_ARGS(device, what, what_len, syndrome),
	TP_STRUCT__entry(
		__string(device, device)
		__string_len(what, what, what_len)
		__field(u32, syndrome)
	),
	TP_fast_assign(
		__assign_str(device);
		__assign_str(what);
		__entry->syndrome = syndrome;
	),
	TP_printk("device=%s what=%s syndrome=0x%04x", __get_str(device), __get_str(what),
		  __entry->syndrome)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE verbena_trace
#include <trace/define_trace.h>
