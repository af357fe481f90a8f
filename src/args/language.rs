//! What commands on language models take.

use super::{At, On};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct Generate {
    pub model: String,
    /// What the text begins with.
    #[arg(long, short, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// The same from a file; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// The prompt is a user's question: the model's chat template makes it what the model answers.
    #[arg(long)]
    pub chat: bool,
    /// With --chat: what the model is told before.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Tokens to write at most.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    pub tokens: usize,
    /// 0 takes the likeliest token each time; 1 draws as the model says.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Draw from the N likeliest tokens only; 0: from all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top_k: usize,
    /// Draw from the likeliest tokens that make up this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f64,
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// What keys and values are kept in: f32, f16 or int8; what the model's file says, else f16.
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<String>,
    /// Go on after a token that ends a text.
    #[arg(long)]
    pub ignore_end: bool,
    /// Leave out the token that the model's prompts begin with, where they do.
    #[arg(long, conflicts_with = "chat")]
    pub no_begin: bool,
    /// Every linear layer in this precision, as `paring eval` takes it.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    #[command(flatten)]
    pub at: At,
    /// Of a model that comes without its tokenizer: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Serve {
    pub model: String,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// The port to listen on; 0 takes one that is free.
    #[arg(long, value_name = "N", default_value_t = 8000)]
    pub port: u16,
    /// Let --host be an address by which other machines reach this one.
    #[arg(long)]
    pub expose: bool,
    /// What clients must send as their key; better in the environment, where other users do not see it.
    #[arg(long, value_name = "KEY", env = "PARING_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// What clients call the model; its file's name by default.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Tokens of a prompt and its answer at most; as many as the model was made for, up to 8192, by default.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Requests that are answered side by side.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub parallel: usize,
    /// Requests that wait besides, at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub queue: usize,
    /// What keys and values are kept in: f32, f16 or int8; what the model's file says, else f16.
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<String>,
    /// Every linear layer in this precision, as `paring eval` takes it.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    #[command(flatten)]
    pub at: At,
    /// Of a model that comes without its tokenizer: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Control {
    pub model: String,
    /// Text that levels and controller are made with; never what --data reports on.
    #[arg(long, value_name = "TEXT")]
    pub calib: String,
    /// Text that the controller is held against fixed levels on.
    #[arg(long, value_name = "TEXT")]
    pub data: String,
    /// Levels, the whole network among them.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub levels: usize,
    /// The mean time of a token, as a share of the whole network's.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub target: f64,
    /// What the last level reads of the whole network's bytes a token; half as far again below the whole as the target by default.
    #[arg(long, value_name = "SHARE")]
    pub least: Option<f64>,
    /// How many controllers are learnt, by as many seeds; the first is written.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seeds: u64,
    /// Which learner's controller is written: bandit or gradient. Both are told of.
    #[arg(long, value_name = "LEARNER", default_value = "bandit")]
    pub learner: String,
    /// Take the levels of a file that this command wrote for the same model, instead of searching for some.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["levels", "least"])]
    pub ladder: Option<PathBuf>,
    /// Tokens a window.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub window: usize,
    /// Tokens of each window that the whole network reads as a prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub prompt: usize,
    /// Windows of --calib at most; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 80)]
    pub calib_limit: usize,
    /// Windows of --data at most; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub limit: usize,
    /// What keys and values are kept in: f32, f16 or int8.
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    pub kv: String,
    /// The file to write: the model with its levels and its controller, for `generate` and `serve`.
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// Of a model that comes without its tokenizer: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Imatrix {
    pub model: String,
    /// What it looks at: text for a language model, images for a classifier; never evaluation data.
    #[arg(long, value_name = "DATA")]
    pub calib: String,
    /// At most this many windows (images); 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: usize,
    /// The GGUF file to write.
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// Of a language model's text: tokens a window, 512 by default.
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<usize>,
    /// Of a language model that comes without its tokenizer: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}
