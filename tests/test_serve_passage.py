"""The passage: what is not recorded goes through, and what would change the server's models does not."""

import pytest

from tests.serving import asking, bench, saved_calls, serving


async def test_everything_else_passes_through_unrecorded(rows):
    embed = {"status": 200, "headers": {"content-type": "application/json"}, "body": [{"text": '{"e":[1]}'}]}
    pages = [{**embed, "route": "POST /api/embed"}, {**embed, "route": "GET /v1/models/a%2Fb%20c?x=1"}]
    root = {"status": 200, "headers": {"content-type": "text/plain"}, "body": [], "route": "HEAD /", "plain": "length"}
    async with bench(*pages, root) as (_upstream, service, client):
        assert (await client.post("/api/embed", json={"input": "x"})).json() == {"e": [1]}
        assert (await client.get("/v1/models/a%2Fb%20c?x=1")).json() == {"e": [1]}
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/api/nosuch")).status_code == 404
        assert await saved_calls(service, rows) == []


@pytest.mark.parametrize(
    "path", ["pull", "push", "create", "copy", "delete", "blobs/sha256:ab", "PULL", "pull/", "%70ull"]
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "HEAD"])
async def test_nothing_that_changes_the_servers_models_passes(method, path, served, fake):
    before = list(fake.requests)
    response = await served.request(method, f"/api/{path}", json={"model": "x"})
    assert response.status_code == 403
    assert fake.requests == before


@pytest.mark.parametrize("path", ["/api/../api/pull", "/api/./pull", "/api//pull", "/api/%2e%2e/pull", "/v1/..%5cx"])
async def test_no_detour_leads_to_what_is_closed(path, served, fake):
    before = list(fake.requests)
    request = served.build_request("POST", served.base_url.copy_with(raw_path=path.encode()), json={})
    assert (await served.send(request)).status_code in (403, 404)
    assert fake.requests == before


@pytest.fixture
async def served(fake):
    async with serving(fake.url) as service, asking(service) as client:
        yield client
