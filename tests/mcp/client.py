"""A session of `paring` through the Python SDK of the Model Context Protocol (`pip install mcp`): lists the tools, looks, is refused,
forecasts, proposes and prints what came of each as JSON. Called by `tests/mcp.rs`; by hand:

    python3 tests/mcp/client.py PARING SESSION
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def told(result):
    text = "".join(getattr(c, "text", "") for c in result.content)
    error = getattr(result, "is_error", None)
    if error is None:
        error = getattr(result, "isError", False)
    return {"error": bool(error), "text": text}


async def main():
    paring, name = sys.argv[1:3]
    server = StdioServerParameters(command=paring, args=["mcp", name], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        out = {"tools": [t.name for t in tools]}
        out["layers"] = told(await session.call_tool("layers", {"sort": "macs", "limit": 3}))
        out["wrong"] = told(await session.call_tool("layers", {"sort": "beauty"}))
        layer = json.loads(out["layers"]["text"])["layers"][0]["name"]
        decision = {"target": layer, "action": "precision", "precision": "int8", "why": "the largest"}
        out["layer"] = layer
        out["forecast"] = told(await session.call_tool("forecast", {"decisions": [decision], "on": "nothing"}))
        out["proposed"] = told(await session.call_tool("propose", {"decisions": [decision], "summary": "a look from outside"}))
        out["resources"] = [str(r.uri) for r in (await session.list_resources()).resources]
        report = await session.read_resource("paring://session/report")
        out["report"] = report.contents[0].text
        print(json.dumps(out))


asyncio.run(main())
