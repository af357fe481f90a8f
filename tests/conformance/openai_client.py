"""By hand: OpenAI's own Python client against `paring serve`, whole and in streams; a failed check ends it.

    python3 -m venv venv && venv/bin/pip install openai==3.57.0
    paring serve SmolLM2-135M-Instruct.Q4_1.gguf --port 8000
    venv/bin/python tests/conformance/openai_client.py http://127.0.0.1:8000/v1 [KEY]
"""

import concurrent.futures
import sys
import time

import openai

URL, KEY = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "none"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
HOW = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=48)


def streamed(**more):
    began, first, pieces, usage, reason = time.time(), None, [], None, None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **{**HOW, **more}):
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.time() - began
                pieces.append(choice.delta.content)
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    return "".join(pieces), usage, reason, first, time.time() - began


whole = client.chat.completions.create(**HOW)
text = whole.choices[0].message.content
print(f"{MODEL}: {text!r} ({whole.choices[0].finish_reason}, {whole.usage.prompt_tokens} + {whole.usage.completion_tokens} tokens)")
again, usage, reason, first, took = streamed()
assert (again, reason, usage) == (text, whole.choices[0].finish_reason, whole.usage), again
print(f"streamed alike: the first words after {first:.2f} s, all after {took:.2f} s")

word = text.split()[3]
stopped, _, reason, _, _ = streamed(stop=[word])
assert reason == "stop" and text.startswith(stopped) and word not in stopped, stopped
print(f"stopped before {word!r}: {stopped!r}")

completion = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0)
print(f"completion: {completion.choices[0].text!r}")

with concurrent.futures.ThreadPoolExecutor() as pool:
    began = time.time()
    questions = ["Name a colour.", "What is 2 + 2?", "Say hello.", "Where is Rome?"]
    asked = [pool.submit(streamed, messages=[{"role": "user", "content": q}], max_tokens=24) for q in questions]
    for q, (answer, usage, *_) in zip(questions, (a.result() for a in asked)):
        print(f"  {q} {answer!r}")
    print(f"{len(questions)} at once in {time.time() - began:.2f} s")

for how, kind in [
    (dict(model="gpt-4o"), openai.NotFoundError),
    (dict(n=2), openai.BadRequestError),
    (dict(temperature=3), openai.BadRequestError),
    (dict(tools=[{"type": "function", "function": {"name": "f"}}]), openai.BadRequestError),
    (dict(max_tokens=10_000_000), openai.BadRequestError),
]:
    try:
        client.chat.completions.create(**{**HOW, **how})
    except kind as e:
        print(f"refused: {e.body['message']}")
    else:
        sys.exit(f"{how} was not refused")

gone = client.chat.completions.create(stream=True, **{**HOW, "max_tokens": 2000})
next(iter(gone))
gone.close()
print("a stream was closed; all is well")
