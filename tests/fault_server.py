"""A small real HTTP server that speaks as much of vLLM as the engine asks for, and fails on command.

Its completions are a function of prompt and seed alone: whoever answers, the trees must be the same.
"""

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from safetensors import safe_open

EOS, CLOSE = 1, 5


def completion(prompt, seed, limit, stop):
    """Ids, log-probs, finish reason and stop reason of one sample."""
    rng = random.Random(f"{prompt} {seed}")
    ids = []
    while len(ids) < limit:
        ids.append(rng.choices([EOS, CLOSE, rng.randrange(6, 26)], [1, 2, 12])[0])
        if ids[-1] == EOS or (ids[-1] == CLOSE and stop):
            break
    finish = "stop" if ids[-1] == EOS or (ids[-1] == CLOSE and stop) else "length"
    return ids, [-rng.random() - 0.01 for _ in ids], finish, stop[0] if stop and ids[-1] == CLOSE else None


class FaultServer:
    """Serves until closed. `faults` are used up one a completion request, `delay` seconds are taken for each."""

    def __init__(self, port=0, mode="processed_logprobs", weights=("lm_head.weight",), delay=0.0):
        self.faults, self.mode, self.weights, self.delay = [], mode, weights, delay
        self.served, self.loaded, self.version = 0, [], "default"
        self.asked = []
        self.healthy = True
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                server.get(self)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.post(self, json.loads(body) if body else {})

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def get(self, handler):
        if not self.healthy:
            self.released.wait(60)
        path = handler.path.split("?")[0]
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": 256}]},
            "/server_info": {
                "vllm_config": {"model_config": {"logprobs_mode": self.mode}},
                "system_env": {"is_cuda_available": "False"},
            },
            "/weight_info": {"weight_version": self.version},
        }
        self.reply(handler, 200 if path in answers else 404, answers.get(path))

    def post(self, handler, body):
        if handler.path == "/v1/completions":
            return self.complete(handler, body)
        if not self.healthy:
            self.released.wait(60)
        if handler.path == "/collective_rpc":
            file = Path(body["kwargs"]["weights_path"]) / "model.safetensors"
            with safe_open(file, "pt") as weights:
                self.loaded.append({name: weights.get_tensor(name) for name in weights.keys()})  # noqa: SIM118
        elif handler.path == "/update_weight_version":
            self.version = body["new_version"]
        self.reply(handler, 200, {"success": True, "checksums": dict.fromkeys(self.weights, "")})

    def complete(self, handler, body):
        self.asked.append(body)
        fault = self.faults.pop(0) if self.faults else None
        time.sleep(self.delay)
        if fault == "kill":
            handler.close_connection = True
            handler.connection.close()
            return
        if fault == "hang":
            self.released.wait(60)
        if fault == "500":
            return self.reply(handler, 500, {"error": "the engine is dead"})
        if fault == "text":
            return self.reply(handler, 200, "no choices")
        choices = [self.choice(body, i) for i in range(body["n"])]
        if fault == "short":  # as if cut off within a token's stream
            choices[-1]["token_ids"] = choices[-1]["token_ids"][:1]
            choices[-1]["logprobs"]["token_logprobs"] = choices[-1]["logprobs"]["token_logprobs"][:1]
            choices[-1] |= {"finish_reason": "length"}
        elif fault == "empty":
            choices[-1] |= {"token_ids": [], "logprobs": {"token_logprobs": []}}
        elif fault == "few":
            choices.pop()
        elif fault == "nan":
            choices[0]["logprobs"]["token_logprobs"][0] = float("nan")
        elif fault == "abort":
            choices[0] |= {"finish_reason": "abort"}
        self.served += 1
        self.reply(handler, 200, {"choices": choices})

    def choice(self, body, i):
        ids, logprobs, finish, reason = completion(
            body["prompt"], body["seed"] + i, body["max_tokens"], body.get("stop")
        )
        return {
            "index": i, "token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": finish,
            "stop_reason": reason,
        }  # fmt: skip

    @staticmethod
    def reply(handler, status, value):
        text = json.dumps(value).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text)
        except OSError:
            pass  # the engine has gone elsewhere
