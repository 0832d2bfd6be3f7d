"""Runs inside a sandbox and tries what must not work; prints one JSON object of outcomes.

It makes real escape attempts, so it refuses to run anywhere but in a sandbox that a test made.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Callable

MARKER = "/workspace/repo/THIS_IS_A_SANDBOX"

if not os.path.exists(MARKER) or os.uname().nodename != "workspace" or os.getuid() != 1000:
    sys.exit("refusing: not inside a sandbox made by a test")

libc = ctypes.CDLL(None, use_errno=True)
outcomes: dict[str, str] = {}


def attempt(name: str, action: Callable[[], object]) -> None:
    try:
        value = action()
    except OSError as error:
        outcomes[name] = errno.errorcode.get(error.errno or 0, str(error.errno))
    else:
        outcomes[name] = value if isinstance(value, str) else "ok"


def call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")


def read(path: str) -> str:
    with open(path, "rb") as file:
        return "empty" if not file.read(64) else "READ"


def rewrite(path: str, value: str | None = None) -> None:
    if value is None:
        with open(path) as file:
            value = file.read()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def system_call(number: int, *arguments: object) -> Callable[[], None]:
    return lambda: call(libc.syscall, ctypes.c_long(number), *arguments)


def family(number: int, kind: int = socket.SOCK_STREAM) -> Callable[[], None]:
    return lambda: socket.socket(number, kind).close()


def reach(host: str, port: int) -> Callable[[], None]:
    def action() -> None:
        with socket.create_connection((host, port), timeout=2):
            pass

    return action


def sys_holds() -> str:
    found = [f"{folder}/{name}" for folder, _, names in os.walk("/sys") for name in names]
    allowed = "/sys/devices/system/cpu/"
    return "yes" if all(path.startswith(allowed) for path in found) else " ".join(found[:3])


attempt("write core_pattern", lambda: rewrite("/proc/sys/kernel/core_pattern"))
attempt("write hostname", lambda: rewrite("/proc/sys/kernel/hostname"))
attempt("write sysrq", lambda: open("/proc/sysrq-trigger", "w").close())
attempt("become a worse victim", lambda: rewrite("/proc/self/oom_score_adj", "-900"))
attempt("read shadow", lambda: read("/etc/shadow"))
attempt("list root home", lambda: "empty" if not os.listdir("/root") else "READ")
attempt("list run", lambda: "empty" if not os.listdir("/run") else "READ")
attempt("docker socket", lambda: read("/var/run/docker.sock"))
attempt("read keys", lambda: read("/proc/keys"))
attempt("read kallsyms", lambda: read("/proc/kallsyms"))
attempt("read timer_list", lambda: read("/proc/timer_list"))
attempt("read kcore", lambda: read("/proc/kcore"))
attempt("read kmsg", lambda: read("/proc/kmsg"))
attempt("environment of process 1", lambda: read("/proc/1/environ"))
attempt("memory of process 1", lambda: read("/proc/1/mem"))
attempt("root of process 1", lambda: "ok" if os.listdir("/proc/1/root") else "empty")
attempt("sys holds processors alone", sys_holds)
attempt("mount tmpfs", lambda: call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, b""))
attempt("umount proc", lambda: call(libc.umount2, b"/proc", 2))
attempt("unshare user", lambda: call(libc.unshare, 0x10000000))
attempt("unshare mount", lambda: call(libc.unshare, 0x00020000))
attempt("setns", system_call(308, 0, 0))
attempt("clone new user", system_call(56, 0x10000000 | 17, 0, 0, 0, 0))
attempt("clone3", system_call(435, 0, 0))
attempt("pivot_root", system_call(155, b"/tmp", b"/tmp"))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("mknod block device", lambda: os.mknod("/tmp/b", 0o060600, os.makedev(254, 0)))
attempt("mknod char device", lambda: os.mknod("/tmp/c", 0o020600, os.makedev(1, 1)))
attempt("mkfifo", lambda: os.mkfifo("/tmp/f"))
attempt("open kvm", lambda: os.open("/dev/kvm", os.O_RDWR))
attempt("open disk", lambda: os.open("/dev/vda", os.O_RDONLY))
attempt("open mem", lambda: os.open("/dev/mem", os.O_RDONLY))
attempt("ptrace", lambda: call(libc.ptrace, 0, 0, 0, 0))
attempt("personality", lambda: call(libc.personality, 0x0040000))
attempt("keyctl", system_call(250, 0, 0))
attempt("add_key", system_call(248, b"user", b"x", b"y", 1, -2))
attempt("bpf", system_call(321, 0, 0, 0))
attempt("perf_event_open", system_call(298, 0, 0, 0, 0, 0))
attempt("userfaultfd", system_call(323, 0))
attempt("io_uring_setup", system_call(425, 1, 0))
attempt("open_by_handle_at", system_call(304, 0, 0, 0))
attempt("process_vm_readv", system_call(310, 1, 0, 0, 0, 0, 0))
attempt("kexec_load", system_call(246, 0, 0, 0, 0))
attempt("init_module", system_call(175, 0, 0, 0))
attempt("settimeofday", system_call(164, 0, 0))
attempt("reboot", system_call(169, 0, 0, 0, 0))
attempt("sethostname", lambda: socket.sethostname("x"))
attempt("swapon", system_call(167, b"/tmp/x", 0))
attempt("TIOCSTI", system_call(16, 0, 0x5412, b"x"))
attempt("TIOCSTI with high bits", system_call(16, 0, ctypes.c_ulong(0x100005412), b"x"))
attempt("TIOCLINUX", system_call(16, 0, 0x541C, b"x"))
attempt("socket unix", family(socket.AF_UNIX))
attempt("socket inet", family(socket.AF_INET))
attempt("socket inet6", family(socket.AF_INET6))
attempt("socket netlink", family(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("socket packet", family(socket.AF_PACKET, socket.SOCK_RAW))
attempt("socket vsock", family(socket.AF_VSOCK))
attempt("socket alg", family(38, socket.SOCK_SEQPACKET))
attempt("raw socket", family(socket.AF_INET, socket.SOCK_RAW))
attempt("reach host loopback", reach("127.0.0.1", int(sys.argv[1])))
attempt("reach metadata address", reach("169.254.169.254", 80))
attempt("reach a public address", reach("192.0.2.1", 443))
attempt("write usr", lambda: open("/usr/bin/x", "w").close())
attempt("write etc", lambda: open("/etc/x", "w").close())
attempt("write root", lambda: open("/x", "w").close())
attempt("setuid root", lambda: os.setuid(0))
attempt("chown to root", lambda: os.chown(MARKER, 0, 0))
attempt("signal process 1 as root's", lambda: os.kill(1, 9))


def signal_first() -> str:
    os.kill(1, 0)
    return "survives"


def inherited() -> str:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not target.startswith(f"/proc/{os.getpid()}/fd"):
                found.append(target)
    return "none" if not found else "LEAKED " + " ".join(found)


attempt("kill process 1", signal_first)
attempt("inherited descriptors", inherited)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
for key in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
    outcomes[key] = status[key].strip().strip("0") or "none"
outcomes["NoNewPrivs"] = status["NoNewPrivs"].strip()
outcomes["Seccomp"] = status["Seccomp"].strip()
outcomes["groups"] = " ".join(map(str, os.getgroups())) or "none"
outcomes["interfaces"] = " ".join(
    sorted(line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line)
)
outcomes["process 1"] = open("/proc/1/comm").read().strip()


def look_up() -> str:
    try:
        socket.getaddrinfo("example.org", 443)
    except socket.gaierror:
        return "EAI"
    return "FOUND"


def fill() -> None:
    try:
        with open("/tmp/full", "wb") as file:
            file.writelines(bytes(1 << 20) for _ in range(1 << 14))
    finally:
        os.unlink("/tmp/full")


def in_child(action: Callable[[], None]) -> str:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
        except MemoryError:
            os.write(write_end, b"MemoryError")
        except OSError as error:
            os.write(write_end, errno.errorcode[error.errno or 0].encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as told:
        words = told.read().decode()
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else words or "ok"


def fork_without_end() -> None:
    children = []
    try:
        for _ in range(4096):
            child = os.fork()
            if child == 0:
                os.execv("/bin/sleep", ["sleep", "60"])
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


def take_memory() -> None:
    bytearray(b"x" * (1 << 30))


rows = [line.split() for line in open("/proc/self/uid_map")]
outcomes["uid_map"] = " ".join(f"{row[0]}+{row[2]}" for row in rows)
outcomes["user in the id map"] = "FOUND" if any(row[1] == "0" for row in rows) else "none"
attempt("look a name up", look_up)
abstract = socket.socket(socket.AF_UNIX)
attempt("reach an abstract socket", lambda: abstract.connect("\0" + sys.argv[2]))
attempt("fill tmp", fill)
attempt("fork without end", lambda: in_child(fork_without_end))
attempt("take memory without end", lambda: in_child(take_memory))
print(json.dumps(outcomes))
