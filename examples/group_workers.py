"""A group of worker processes, one of which is killed while it works; nothing is lost.

python examples/group_workers.py

Uses $HEADWATER_URL, or a private server with its data under .headwater/ in this directory.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time

import headwater

MESSAGES = 300
ACK_MS = 1000


def work(stream: str, name: str) -> None:
    """Take messages and acknowledge them; the clumsy worker is killed before its ack."""
    with headwater.connect() as hw:
        group = hw.stream(stream).group("workers", member=name)
        while True:
            for message in group.read(20, block_ms=10_000, ack_ms=ACK_MS):
                print(name, message.offset, message.attempt, flush=True)
                if name == "clumsy":
                    time.sleep(3600)
                group.ack(message.offset)


def start(stream: str, name: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, stream, name]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def main() -> None:
    with headwater.connect() as hw:
        jobs = hw.stream(f"jobs-{secrets.token_hex(4)}")
        group = jobs.group("workers")
        jobs.write_many((f"job-{number % 10}", f"do {number}") for number in range(MESSAGES))
        processes: list[subprocess.Popen[str]] = []
        try:
            clumsy = start(jobs.name, "clumsy")
            processes.append(clumsy)
            assert clumsy.stdout is not None
            print("clumsy takes a batch:", clumsy.stdout.readline().strip())
            clumsy.kill()
            processes += [start(jobs.name, name) for name in ("amy", "bob")]
            while group.info().ack_offset <= MESSAGES:
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
        said = "".join(process.communicate()[0] for process in processes)
        rows = [line.split() for line in said.splitlines()]
        again = [row for row in rows if row[2] == "2"]
        print(f"{MESSAGES} messages are done; {len(again)} were redelivered after the crash")
        for name in ("amy", "bob"):
            print(f"{name} did {sum(row[0] == name for row in rows)}")
        facts = group.info()
        assert (facts.pending, facts.lag) == (0, 0)
        jobs.delete()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        work(*sys.argv[1:])
    else:
        main()
