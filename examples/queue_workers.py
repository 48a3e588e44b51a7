"""Mail by a queue: sent by several threads, retried with back-off, given up after three attempts.

Run it twice: the second run continues where the first one ended.
"""

from __future__ import annotations

import threading

import headwater

RECIPIENTS = [f"user-{number}@example.com" for number in range(20)]


def main() -> None:
    with headwater.connect() as hw:
        mail = hw.queue("mail")
        mail.configure(max_attempts=3, backoff="exponential", backoff_ms=50)
        # A second start of this program adds nobody twice.
        mail.push_many(RECIPIENTS, dedupe=[f"welcome/{name}" for name in RECIPIENTS])
        mail.push("boss@example.com", priority=10, dedupe="welcome/boss")
        mail.push("reminder@example.com", delay_ms=200, dedupe="reminder")
        mail.push("bounces@example.com", dedupe="welcome/bounces")

        sent: list[str] = []
        all_over = threading.Event()

        @mail.worker(concurrency=3, ack_ms=10_000)
        def send(delivery: headwater.Delivery) -> None:
            name = delivery.value.decode()
            if name.startswith("bounces"):
                raise ConnectionError("mailbox unavailable")
            sent.append(name)

        def watch() -> None:
            # Other workers may take messages, too, so the queue is asked whether all is done.
            while not all_over.wait(0.05):
                facts = mail.stats()
                if facts.ready + facts.delayed + facts.unacked == 0:
                    all_over.set()
            send.stop()

        watcher = threading.Thread(target=watch)
        watcher.start()
        send.run()
        watcher.join()

        print(f"sent {len(sent)} mails, the first to {sent[0] if sent else 'nobody'}")
        for letter in mail.dead():
            print(f"given up after {letter.attempt} attempts: {letter.value.decode()}")


if __name__ == "__main__":
    main()
