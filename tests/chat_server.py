"""A small real HTTP server that speaks chat completions, well or badly, as a test says. Loopback only."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Seen:
    """One request that arrived."""

    at: float
    body: dict
    answered: bool = False

    @property
    def prompt(self):
        return self.body["messages"][0]["content"]

    @property
    def question(self):
        return self.prompt.partition("Question:\n")[2]

    @property
    def mark(self):
        """What makes it this request and no other."""
        return hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()


@dataclass
class Answer:
    status: int = 200
    text: str | None = None
    """Content of a chat completion."""
    raw: str | None = None
    """A body as it is, in place of a completion."""
    headers: dict = field(default_factory=dict)
    finish: str = "stop"
    delay: float = 0.0
    hang_up: bool = False


def limit(retry_after=None, code="rate_limit_exceeded"):
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Answer(429, raw=json.dumps({"error": {"message": "slow down", "code": code}}), headers=headers)


class ChatServer:
    """`behave(seen, number)` gives the answer to the number-th request (from 0) with this very body."""

    def __init__(self, behave: Callable[[Seen, int], Answer]):
        self.behave, self.seen, self.lock = behave, [], threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    seen = Seen(time.monotonic(), body)
                    number = sum(other.mark == seen.mark for other in server.seen)
                    server.seen.append(seen)
                answer = server.behave(seen, number)
                time.sleep(answer.delay)
                if answer.hang_up:
                    self.close_connection = True
                    return
                self.reply(answer)
                seen.answered = answer.status == 200

            def reply(self, answer):
                raw = completion(answer) if answer.raw is None else answer.raw
                data = raw.encode()
                self.send_response(answer.status)
                for key, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass  # clients are killed in the middle of requests

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def completion(answer):
    return json.dumps(
        {
            "id": "1", "object": "chat.completion", "model": "tiny-1",
            "choices": [{"index": 0, "finish_reason": answer.finish,
                         "message": {"role": "assistant", "content": answer.text}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )  # fmt: skip
