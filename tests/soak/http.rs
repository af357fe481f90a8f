//! Servers that misbehave below the answer: status codes, redirects, headers, ends and stalls at every stage, streams
//! without measure, encodings, framing.

use crate::answers::{proposal, token};
use crate::rig::KEY;
use crate::server::{Behaviour, Part};
use std::io::Write;

/// A response with its length, whole.
pub fn whole(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<Part> {
    let mut out = head(status, headers);
    out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    out.extend_from_slice(body);
    vec![Part::Bytes(out)]
}

/// The beginning of a response, up to where more headers may follow.
fn head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    headers.iter().for_each(|(k, v)| out.push_str(&format!("{k}: {v}\r\n")));
    out.into_bytes()
}

/// The head of a stream that goes on until the connection ends.
pub fn open() -> Part {
    Part::Bytes([&head(200, &[("content-type", "text/event-stream")])[..], b"\r\n"].concat())
}

/// A stream of these bytes.
pub fn stream(body: impl AsRef<[u8]>) -> Vec<Part> {
    vec![open(), Part::Bytes(body.as_ref().to_vec())]
}

/// As [`stream`], in chunks with these lengths told.
fn chunked(body: &[u8], tell: impl Fn(usize) -> String) -> Vec<u8> {
    let mut out = head(200, &[("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]);
    out.extend_from_slice(b"\r\n");
    for piece in body.chunks(97) {
        out.extend_from_slice(format!("{}\r\n", tell(piece.len())).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

fn packed(body: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(body).expect("packed");
    gzip.finish().expect("packed")
}

/// Every behaviour of this kind. Nobody may ever call at `elsewhere`.
pub fn behaviours(elsewhere: &str) -> Vec<Behaviour> {
    let mut all: Vec<Behaviour> = Vec::new();
    let mut add = |name: &str, chat: Vec<Vec<Part>>, endless: bool| {
        all.push(Behaviour { name: name.to_owned(), models: None, chat, endless });
    };
    let good = proposal();
    let once = |parts: Vec<Part>| vec![parts];
    let then_good = |parts: Vec<Part>| vec![parts, stream(&good)];

    for status in [400, 401, 402, 403, 404, 405, 408, 409, 413, 422, 425, 429, 451, 500, 501, 502, 503, 504, 529, 599] {
        let body = format!(r#"{{"error":{{"message":"refused {status} for {KEY}","code":{status}}}}}"#);
        add(
            &format!("status {status}"),
            once(whole(status, &[("content-type", "application/json")], body.as_bytes())),
            false,
        );
    }
    for (what, after) in [
        ("seconds", "1"),
        ("a date gone by", "Wed, 21 Oct 2015 07:28:00 GMT"),
        ("a date to come", "Fri, 21 Oct 2089 07:28:00 GMT"),
        ("words", "soon\u{9b}31m"),
        ("a number beyond all", "99999999999999999999999999"),
        ("less than nothing", "-1"),
    ] {
        add(&format!("retry after {what}"), then_good(whole(429, &[("retry-after", after)], b"slow down")), false);
    }
    add("status 200 and an error", once(whole(200, &[], format!(r#"{{"error":"bad {KEY}"}}"#).as_bytes())), false);
    add(
        "an error of nested objects",
        once(whole(400, &[], br#"{"error":{"error":{"error":[{"detail":{"msg":"x"}}]}}}"#)),
        false,
    );
    add(
        "a page",
        once(whole(200, &[("content-type", "text/html")], b"<html><script>alert(1)</script>log in</html>")),
        false,
    );
    add("a page as an error", once(whole(502, &[], b"<html>\x1b]0;pwned\x07 bad gateway</html>")), false);
    add("no body", once(whole(200, &[], b"")), false);
    add("status 204", once(whole(204, &[], b"")), false);
    add("status 100 for ever", once(vec![Part::Again(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), 1)]), true);
    add("status 999", once(whole(999, &[], b"what")), false);
    add(
        "status 101",
        once(vec![Part::Bytes(b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n".to_vec())]),
        false,
    );
    add("no HTTP", once(vec![Part::Bytes(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec())]), false);
    add("HTTP/0.9", once(vec![Part::Bytes(good.clone())]), false);

    for status in [301, 302, 303, 307, 308] {
        for (what, to) in [
            ("elsewhere", format!("{elsewhere}/chat/completions")),
            ("a file", "file:///etc/passwd".to_owned()),
            ("itself", "/v1/chat/completions".to_owned()),
        ] {
            add(&format!("redirect {status} to {what}"), once(whole(status, &[("location", &to)], b"")), false);
        }
    }
    add("redirect here", then_good(whole(307, &[("location", "/v1/chat/completions/")], b"")), false);
    add("redirect to nowhere", once(whole(307, &[], b"")), false);
    add("redirect to garbage", once(whole(302, &[("location", "ht!tp://[::1")], b"")), false);
    add("redirect to a name that nobody has", once(whole(302, &[("location", "http://nobody.invalid/")], b"")), false);

    // Ends and stalls at every stage of a good answer.
    let full = chunked(&good, |n| format!("{n:x}"));
    let body = full.windows(4).position(|w| w == b"\r\n\r\n").expect("a body") + 4;
    let stages = [
        ("before the head", 0),
        ("in the status line", 7),
        ("in the headers", body - 20),
        ("after the headers", body),
        ("in a chunk's length", body + 1),
        ("in a chunk", body + 40),
        ("between chunks", body + 103),
        ("in the middle", body + (full.len() - body) / 2),
        ("before the last chunk", full.len() - 5),
    ];
    for (stage, at) in stages {
        let before = || Part::Bytes(full[..at].to_vec());
        add(&format!("closes {stage}"), once(vec![before()]), false);
        add(&format!("resets {stage}"), once(vec![before(), Part::Reset]), false);
        add(&format!("stalls {stage}"), once(vec![before(), Part::Hang]), true);
    }
    add("drips", once(vec![Part::Drip(full[..body + 300].to_vec(), 1)]), true);
    add("drips the status line", once(vec![Part::Drip(full[..20].to_vec(), 200), Part::Hang]), true);
    add(
        "pauses and goes on",
        once(vec![
            Part::Bytes(full[..body + 300].to_vec()),
            Part::Pause(700),
            Part::Bytes(full[body + 300..].to_vec()),
        ]),
        false,
    );

    // Without measure.
    let event = token("").repeat(400);
    for (what, start, again) in [
        ("headers", Part::Bytes(b"HTTP/1.1 200 X\r\n".to_vec()), b"x-more: yyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(1000)),
        ("one header", Part::Bytes(b"HTTP/1.1 200 X\r\nx: ".to_vec()), vec![b'y'; 65_536]),
        ("status line", Part::Bytes(b"HTTP/1.1 200 ".to_vec()), vec![b'y'; 65_536]),
        ("one line", open(), vec![b'y'; 65_536]),
        ("one event", Part::Bytes([&head(200, &[])[..], b"\r\ndata: "].concat()), vec![b'y'; 65_536]),
        ("events without content", open(), event.into_bytes()),
        ("comments", open(), b": still here\n\n".repeat(4_000)),
        ("blank lines", open(), b"\n".repeat(65_536)),
        ("reasoning", open(), crate::answers::thought("and so on, ").repeat(400).into_bytes()),
        ("text", open(), token("and so on, ").repeat(400).into_bytes()),
        ("brackets", open(), token("<<<<<<<<<<<<").repeat(400).into_bytes()),
        ("fences", open(), token("```json\\n{\\\"decisions\\\":[").repeat(400).into_bytes()),
        ("no JSON", open(), b"data: {no\n\n".repeat(4_000)),
        (
            "a body in one piece",
            Part::Bytes([&head(200, &[])[..], b"\r\n{\"choices\":[0"].concat()),
            b",0".repeat(32_768),
        ),
        ("a page", Part::Bytes([&head(200, &[])[..], b"\r\n<html>"].concat()), b"<p>x".repeat(16_384)),
        ("an error", Part::Bytes([&head(500, &[])[..], b"\r\n"].concat()), b"no ".repeat(16_384)),
        ("signs of life", open(), b": still here\n\n".to_vec()),
    ] {
        let pause = if what == "signs of life" { 50 } else { 0 };
        add(&format!("endless {what}"), once(vec![start, Part::Again(again, pause)]), true);
    }

    // Encodings and framing.
    let typed = |kind: &str, body: &[u8]| whole(200, &[("content-type", kind)], body);
    let encoded = |coding: &str, body: &[u8]| whole(200, &[("content-encoding", coding)], body);
    let bomb = packed(&token(&" ".repeat(1 << 20)).into_bytes().repeat(64));
    add("a bomb in gzip", once(encoded("gzip", &bomb)), true);
    add("a bomb of one line", once(encoded("gzip", &packed(&vec![b' '; 256 << 20]))), true);
    add("gzip unasked", once(encoded("gzip", &packed(&good))), false);
    add("gzip that is none", once(encoded("gzip", &good)), false);
    add("gzip cut short", once(encoded("gzip", &packed(&good)[..40])), false);
    for coding in ["br", "compress", "x-what\t", "gzip, gzip"] {
        add(&format!("encoding {}", coding.trim()), once(encoded(coding, &good)), false);
    }
    for kind in ["text/html", "image/png", "application/octet-stream", "", "text/event-stream; charset=utf-16"] {
        add(&format!("content type `{kind}`"), once(typed(kind, &good)), false);
    }
    for (what, tell) in [
        ("no number", "zz"),
        ("too long", "ffffffffffffffff"),
        ("less than nothing", "-5"),
        ("an overflow", "fffffffffffffffff"),
    ] {
        add(&format!("chunk length {what}"), once(vec![Part::Bytes(chunked(&good, |_| tell.to_owned()))]), false);
    }
    add("chunk extensions", once(vec![Part::Bytes(chunked(&good, |n| format!("{n:x};x={}", "y".repeat(300))))]), false);
    let length = |n: &str| [&head(200, &[("content-length", n)])[..], b"\r\n", &good].concat();
    for n in ["5", "99999999", "-1", "many", "18446744073709551616"] {
        add(&format!("length {n}"), once(vec![Part::Bytes(length(n))]), false);
    }
    let twice = head(200, &[("content-length", "5"), ("content-length", "7"), ("transfer-encoding", "chunked")]);
    add("two lengths and chunks", once(vec![Part::Bytes([&twice[..], b"\r\n", &good].concat())]), false);
    add(
        "headers that are no text",
        once(vec![Part::Bytes([&b"HTTP/1.1 200 \x1b[2J\xff\r\nx: \xff\xfe\x00\r\n\r\n"[..], &good].concat())]),
        false,
    );
    add(
        "a cookie and a refresh",
        once(whole(200, &[("set-cookie", "a=b"), ("refresh", &format!("0; url={elsewhere}"))], &good)),
        false,
    );

    // Lists of models.
    let mut list = |name: &str, models: Vec<Part>, endless: bool| {
        all.push(Behaviour {
            name: format!("models: {name}"),
            models: Some(models),
            chat: vec![stream(&good)],
            endless,
        });
    };
    list("none", whole(200, &[], br#"{"data":[]}"#), false);
    list("an error", whole(500, &[], format!("no list for {KEY}").as_bytes()), false);
    list("no JSON", whole(200, &[], b"models"), false);
    list("wrong types", whole(200, &[], br#"{"data":{"id":7,"models":[null,3,{"id":[]}]}}"#), false);
    list("odd names", whole(200, &[], format!(r#"{{"data":[{{"id":"m\u001b[2J\u202e{KEY}"}}]}}"#).as_bytes()), false);
    list(
        "a long name",
        whole(200, &[], format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "m".repeat(1 << 20)).as_bytes()),
        false,
    );
    list(
        "many",
        whole(200, &[], format!(r#"{{"data":[{}{{"id":"m"}}]}}"#, r#"{"id":"x"},"#.repeat(50_000)).as_bytes()),
        false,
    );
    list(
        "endless",
        vec![
            Part::Bytes([&head(200, &[])[..], b"\r\n{\"data\":["].concat()),
            Part::Again(br#"{"id":"m"},"#.repeat(6_000), 0),
        ],
        true,
    );
    list("elsewhere", whole(302, &[("location", &format!("{elsewhere}/models"))], b""), false);
    list("stalls", vec![Part::Hang], true);
    list("closes", vec![], false);
    all
}
