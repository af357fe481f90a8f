//! A server that writes exactly the bytes it is told to, in the pieces and with the pauses it is told to, and cuts them off
//! where it is told to. One behaviour at a time.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One thing done while answering; after the last the connection is closed.
#[derive(Debug, Clone)]
pub enum Part {
    Bytes(Vec<u8>),
    /// A byte at a time, with this many milliseconds between.
    Drip(Vec<u8>, u64),
    Pause(u64),
    /// Again and again, with this many milliseconds between, until the client goes away.
    Again(Vec<u8>, u64),
    /// Says nothing more until the client goes away.
    Hang,
    /// Closes without a goodbye.
    Reset,
}

/// What a server does to those who ask it.
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub name: String,
    /// To `/models`; `None`: a list of one.
    pub models: Option<Vec<Part>>,
    /// To questions in turn; the last repeats.
    pub chat: Vec<Vec<Part>>,
    /// It may go on for as long as the client bears it: the test cancels.
    pub endless: bool,
}

/// How an answer is torn on its way, differently in every pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tear {
    /// 0: pieces as they are.
    pub seed: u64,
    /// After so many bytes the connection ends.
    pub cut: Option<usize>,
}

type Now = Arc<Mutex<(Behaviour, Tear, usize)>>;

/// The server; it stops when dropped.
pub struct Server {
    /// Base URL, with `/v1`.
    pub url: String,
    now: Now,
    /// Connections so far.
    pub met: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

fn lock(now: &Now) -> MutexGuard<'_, (Behaviour, Tear, usize)> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("address");
        let first = Behaviour { name: String::new(), models: None, chat: vec![vec![]], endless: false };
        let server = Server {
            url: format!("http://{address}/v1"),
            now: Arc::new(Mutex::new((first, Tear::default(), 0))),
            met: Arc::default(),
            stop: Arc::default(),
            address,
        };
        let (now, met, stop) = (server.now.clone(), server.met.clone(), server.stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                met.fetch_add(1, Ordering::Relaxed);
                let now = now.clone();
                std::thread::spawn(move || {
                    // A client that goes away ends its thread: nothing to report.
                    let _ = serve(stream, &now);
                });
            }
        });
        server
    }

    pub fn play(&self, behaviour: Behaviour, tear: Tear) {
        *lock(&self.now) = (behaviour, tear, 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, now: &Now) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0usize);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (parts, tear) = {
        let mut now = lock(now);
        let (behaviour, tear, asked) = &mut *now;
        let tear = *tear;
        if first.contains("/models") {
            let list = crate::http::whole(200, &[], br#"{"object":"list","data":[{"id":"m","object":"model"}]}"#);
            // What is torn is what is asked for, or most passes would end here.
            (behaviour.models.clone().unwrap_or(list), Tear::default())
        } else {
            let n = *asked;
            *asked += 1;
            (behaviour.chat.get(n).or(behaviour.chat.last()).cloned().unwrap_or_default(), tear)
        }
    };
    let mut out = Torn { stream, left: tear.cut, rng: (tear.seed > 0).then(|| ChaCha8Rng::seed_from_u64(tear.seed)) };
    for part in &parts {
        match part {
            Part::Bytes(bytes) => out.send(bytes)?,
            Part::Drip(bytes, ms) => {
                for byte in bytes {
                    out.send(&[*byte])?;
                    std::thread::sleep(Duration::from_millis(*ms));
                }
            }
            Part::Pause(ms) => std::thread::sleep(Duration::from_millis(*ms)),
            Part::Again(bytes, ms) => loop {
                out.stream.write_all(bytes)?;
                std::thread::sleep(Duration::from_millis(*ms));
            },
            Part::Hang => {
                out.stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                let _ = reader.read(&mut [0])?;
                return Ok(());
            }
            Part::Reset => {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let size = size_of::<libc::linger>() as libc::socklen_t;
                // SAFETY: an option of our own socket, with a value of the right type and size.
                unsafe {
                    let value = (&raw const linger).cast();
                    libc::setsockopt(out.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size);
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The way out, on which bytes may be cut into pieces or off.
struct Torn {
    stream: TcpStream,
    left: Option<usize>,
    rng: Option<ChaCha8Rng>,
}

impl Torn {
    fn send(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        let most = self.left.unwrap_or(usize::MAX).min(bytes.len());
        let cut_off = most < bytes.len();
        bytes = &bytes[..most];
        self.left = self.left.map(|l| l - most);
        // Small enough to be torn at all; what is large goes as it is, or a pass would take minutes.
        while let Some(rng) = self.rng.as_mut().filter(|_| !bytes.is_empty() && bytes.len() < 20_000) {
            let n = rng.random_range(1..=bytes.len().min(1_500));
            self.stream.write_all(&bytes[..n])?;
            bytes = &bytes[n..];
            if rng.random_bool(0.2) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.stream.write_all(bytes)?;
        match cut_off {
            true => Err(std::io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}
