"""A digest of a table's rows that does not depend on who reads them, on their
order, or on how the reader represents times and bytes."""

import datetime
import hashlib
import json

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def plain(v):
    if isinstance(v, datetime.datetime):
        if v.tzinfo is None:
            v = v.replace(tzinfo=datetime.timezone.utc)
        return (v - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(v, datetime.date):
        return v.isoformat()
    if isinstance(v, (bytes, bytearray)):
        return bytes(v).hex()
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    return v


def digest(rows):
    """rows are dicts; gives their number and the digest of all of them."""
    lines = sorted(json.dumps(plain(r), sort_keys=True) for r in rows)
    return {"rows": len(lines), "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()}
