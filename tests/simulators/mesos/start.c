// SPDX-License-Identifier: GPL-3.0-or-later
// A program of the stand-ins as the loader sees it: an ELF file that is linked with libmesos, as the real ones are. So
// the loader ends it with 127 where it does not find that, and ldd tells of it. Then it becomes Python, with what is
// packed behind it in the same file. With HELPER it ends, like an executor that has nothing to do.
// Without a C library: it runs on hosts whose own is older than the one here.
typedef long word;
extern const int libmesos;

#if defined(__x86_64__)
enum { EXECVE = 59, EXIT = 60 };
__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall start\n");

static word call(word number, const void *one, const void *two, const void *three)
{
    word answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(one), "S"(two), "d"(three) : "rcx", "r11", "memory");
    return answer;
}
#elif defined(__aarch64__)
enum { EXECVE = 221, EXIT = 93 };
__asm__(".globl _start\n_start: mov x0, sp\nb start\n");

static word call(word number, const void *one, const void *two, const void *three)
{
    register word x8 __asm__("x8") = number;
    register const void *x0 __asm__("x0") = one, *x1 __asm__("x1") = two, *x2 __asm__("x2") = three;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return (word)x0;
}
#endif

static void end(word status)
{
    for (;;)
        call(EXIT, (const void *)status, 0, 0);
}

#ifdef HELPER
void start(void)
{
    end(libmesos ? 0 : 127);
}
#else
enum { AT_EXECFN = 31 };

// The words and variables that a program is given, and behind them what the kernel tells of it.
void start(const char **stack)
{
    word count = *(word *)stack;
    const char **given = stack + 1, **variables = given + count + 1, *self = given[0];
    const char *words[count + 3];
    word *told = (word *)variables;

    while (*told++)
        ;
    for (; told[0]; told += 2)
        if (told[0] == AT_EXECFN)
            self = (const char *)told[1];
    words[0] = "python3";
    words[1] = "-IB";
    words[2] = self;
    for (word place = 1; place <= count; place++)
        words[place + 2] = given[place];
    if (libmesos)
        call(EXECVE, "/usr/bin/python3", words, variables);
    end(127);
}
#endif
