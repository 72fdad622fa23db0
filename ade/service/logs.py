"""Log lines of the service: plain text, or a JSON object a line."""

import json
import logging
import time
from typing import Literal

LogFormat = Literal["text", "json"]
ACCESS = "ade.access"
FIELDS = ("request_id", "client", "method", "path", "status", "seconds")  # of a request, where a line is about one


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; fields of the request are there where the record has them."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logs(form: LogFormat, access_log: bool) -> None:
    """Log to stderr: warnings and errors, and with `access_log` each request."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(ACCESS).setLevel(logging.INFO if access_log else logging.WARNING)
