/* Lets user-mode Linux run on processors with more registers than it supports (AMX). User-mode Linux sets the
 * registers of its processes from buffers of a fixed size: the largest size at the time when it was built. A kernel
 * accepts only buffers of its own size, and returns EFAULT for other sizes. This library therefore extends each buffer
 * with the current content of the process's further registers. */
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char whole[1 << 16];

/* Returns `registers`, or a longer copy if the kernel has more registers. User-mode Linux has one thread. */
static struct iovec extended(int process, struct iovec registers) {
    struct iovec all = {whole, sizeof whole};
    long got = syscall(SYS_ptrace, PTRACE_GETREGSET, process, NT_X86_XSTATE, &all);
    if (got != 0 || all.iov_len <= registers.iov_len) {
        return registers;
    }
    memcpy(whole, registers.iov_base, registers.iov_len);
    return all;
}

long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    int process = va_arg(arguments, int);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        struct iovec registers = extended(process, *(struct iovec *)data);
        return syscall(SYS_ptrace, request, process, address, &registers);
    }
    long word = 0;
    int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    long result = syscall(SYS_ptrace, request, process, address, peeks ? (void *)&word : data);
    return peeks && result == 0 ? word : result;
}
