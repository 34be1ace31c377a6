"""Stand-in for the Hugging Face Hub: the endpoints of an upload, on this machine."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TOKEN = "hf_secretsecretsecret"
OID = "a" * 40


@dataclass
class Hub:
    """State of the stand-in. The user of `TOKEN` is ada."""

    private: dict[str, bool] = field(default_factory=dict)
    """Repositories, and whether they are private."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Committed files, by OWNER/NAME/PATH."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """Objects of Git LFS, by their hash."""
    lfs: bool = True
    """True: weights are stored by Git LFS, as on the hub."""
    full: bool = False
    """True: it takes no objects of Git LFS."""
    broken: bool = False
    """True: every request fails with status 503."""
    address: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, content: Any = None) -> None:
        body = json.dumps({} if content is None else content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def handle_request(self) -> None:
        path, hub, body = urlsplit(self.path).path, self.hub, self.body()
        if hub.broken:
            return self.answer(503)
        if path.startswith("/lfs/"):
            if hub.full:
                return self.answer(403, {"error": "Private repository storage limit reached"})
            hub.stored[path.removeprefix("/lfs/")] = body
            return self.answer(200)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"error": "Invalid username or password."})
        if path == "/api/whoami-v2":
            return self.answer(200, {"name": "ada", "type": "user", "orgs": []})
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        match = re.fullmatch(r"(?:/api/models)?/([\w-]+/[\w-]+)(?:\.git)?(/.*)?", path)
        assert match is not None, path
        return self.repository(match[1], match[2] or "", body)

    do_GET = do_POST = do_PUT = handle_request  # noqa: N815

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization'] or 'ada'}/{asked['name']}"
        url = {"url": f"{self.hub.address}/{name}"}
        if not name.startswith("ada/"):
            return self.answer(403, {"error": "You don't have the rights"})
        if name in self.hub.private:
            return self.answer(409, {**url, "error": "You already created this model repo"})
        self.hub.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
        return self.answer(200, url)

    def repository(self, name: str, rest: str, body: bytes) -> None:
        if name not in self.hub.private:
            return self.answer(404, {"error": "Repository not found"})
        if rest in ("", "/revision/main"):
            found = {"id": name, "sha": OID, "private": self.hub.private[name], "siblings": []}
            return self.answer(200, found)
        if not name.startswith("ada/"):
            return self.answer(403, {"error": "You don't have the rights"})
        if rest == "/preupload/main":
            files = [
                {"path": f["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if self.hub.lfs and "safetensors" in f["path"] else "regular"}
                for f in json.loads(body)["files"]
            ]  # fmt: skip
            return self.answer(200, {"files": files})
        if rest == "/info/lfs/objects/batch":
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        assert rest == "/commit/main", rest
        for line in body.splitlines():
            value = (entry := json.loads(line))["value"]
            if entry["key"] == "file":
                self.hub.files[f"{name}/{value['path']}"] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.hub.files[f"{name}/{value['path']}"] = self.hub.stored[value["oid"]]
        url = f"{self.hub.address}/{name}/commit/{OID}"
        return self.answer(200, {"success": True, "commitOid": OID, "commitUrl": url})


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
