"""A server of scripted chat completions with reasoning, for promptfoo's own OpenAI provider."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

REPLIES = {"3 + 4": ("Three and four.\n\nMake seven.", "It is\n\n7"), "9 + 9": (None, "18")}


class Scripted(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][-1]["content"]
        thinking, text = next(r for words, r in REPLIES.items() if words in asked)
        message = {"role": "assistant", "content": text, "reasoning_content": thinking}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        data = json.dumps({"id": "1", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8961), Scripted).serve_forever()
