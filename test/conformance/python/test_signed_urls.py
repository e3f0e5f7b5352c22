"""With E2B_SANDBOX_URL set, nothing in a signed URL names the sandbox: the
server finds it by the signature."""

import json
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from support import http, scratch


def form(data, filename=None):
    name = f'; filename="{filename}"' if filename else ""
    body = f'--b\r\nContent-Disposition: form-data; name="file"{name}\r\n\r\n{data}\r\n--b--\r\n'
    return {"body": body.encode(), "content_type": "multipart/form-data; boundary=b"}


def changed(url, **changes):
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **changes}
    return urlunsplit(parts._replace(query=urlencode({k: v for k, v in query.items() if v})))


def test_download(sandbox, new):
    new()  # which must not be mistaken for the other one
    path = scratch(" é+%.txt")
    sandbox.files.write(path, "through a signed url")
    assert http(sandbox.download_url(path)) == (200, b"through a signed url")


def test_download_as_root_relative_path(sandbox):
    sandbox.files.write("signed.txt", "of root", user="root")
    assert http(sandbox.download_url("signed.txt", user="root")) == (200, b"of root")


def test_download_of_a_missing_file(sandbox):
    assert http(sandbox.download_url(scratch()))[0] == 404


def test_download_before_the_expiration(sandbox):
    path = scratch()
    sandbox.files.write(path, "in time")
    assert http(sandbox.download_url(path, use_signature_expiration=60)) == (200, b"in time")


def test_download_after_the_expiration(sandbox):
    path = scratch()
    sandbox.files.write(path, "too late")
    status, body = http(sandbox.download_url(path, use_signature_expiration=-10))
    assert status == 401
    assert json.loads(body) == {"code": 401, "message": "signature is already expired"}


def test_upload_of_a_file(sandbox):
    path = scratch("/nested/upload.txt")
    status, body = http(sandbox.upload_url(path), **form("uploaded", filename="ignored.txt"))
    assert status == 200
    assert json.loads(body) == [{"name": "upload.txt", "path": path, "type": "file"}]
    assert sandbox.files.read(path) == "uploaded"


def test_upload_of_a_form_field_without_a_file_name(sandbox):
    path = scratch()
    assert http(sandbox.upload_url(path), **form("a bare field"))[0] == 200
    assert sandbox.files.read(path) == "a bare field"


def test_signature_is_good_for_one_path_and_one_direction_only(sandbox):
    path = scratch()
    sandbox.files.write(path, "secret")
    url = sandbox.download_url(path)
    assert http(url, **form("overwritten"))[0] >= 400
    assert http(changed(url, path="/etc/passwd"))[0] >= 400
    assert http(changed(url, signature=None))[0] >= 400
    assert sandbox.files.read(path) == "secret"
