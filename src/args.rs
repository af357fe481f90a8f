//! The command line as it is typed, for `cli` and `headless`. Values are checked in `cli` and the rooms behind it, not here.

mod language;

pub use language::{Control, Generate, Imatrix, Serve};

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const AFTER: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 budget not met, 4 cancelled.\n\
Standard output carries data only; messages and progress go to standard error.\n\
Without a subcommand `paring` opens the bundled demo session.";

/// Human-in-the-loop neural-network compression at the terminal.
#[derive(Debug, Parser)]
#[command(name = "paring", version, about, after_help = AFTER, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Cmd>,
    #[command(flatten)]
    pub screen: Screen,
}

/// How the screen looks; for every command that shows it.
#[derive(Debug, Clone, Default, Args)]
pub struct Screen {
    /// Theme: dark, light, cividis, contrast, or a file in the user's themes folder.
    #[arg(long, global = true, value_name = "NAME")]
    pub theme: Option<String>,
    /// auto, truecolor, 256, 16 or none.
    #[arg(long, global = true, value_name = "LEVEL")]
    pub colors: Option<String>,
    /// Draw with ASCII only.
    #[arg(long, global = true)]
    pub ascii: bool,
}

#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Open a session on a model, or attach to it when it exists.
    Open(Open),
    /// Attach to a running or stored session.
    Attach {
        /// The session's name; the only or newest one by default.
        name: Option<String>,
        /// Watch without taking the pen.
        #[arg(long)]
        watch: bool,
    },
    /// List sessions.
    Ls {
        #[arg(long)]
        json: bool,
    },
    /// End a session's host; the session stays on disk.
    Stop { name: String },
    /// Print a session's events.
    Log {
        name: String,
        #[arg(long)]
        json: bool,
    },
    /// Write a session's report: Markdown on standard output, or files. The session may be open.
    Report {
        /// The session's name, or the folder of one; the newest one by default.
        name: Option<String>,
        /// One page that needs nothing else: tables, plots and how every figure was measured; `-` for standard output.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// The same as Markdown; `-` for standard output.
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
    },
    /// Let another program look at a session, rehearse and propose, over the Model Context Protocol on standard input and output.
    Mcp(Mcp),
    /// Say what of this terminal, machine and configuration will work: colours, folders, device, endpoint.
    Doctor {
        #[arg(long)]
        json: bool,
    },
    /// Measure latency, memory and MACs per layer.
    Profile(Profile),
    /// Evaluate a model on a data set.
    Eval(Eval),
    /// Tell how well a classifier of images holds: calibration, common corruptions, adversaries, images that it knows nothing of.
    Robust(Robust),
    /// Let a language model write, and tell how long each token takes.
    Generate(Generate),
    /// Answer OpenAI's HTTP interface with a language model.
    Serve(Serve),
    /// Make levels of a language model and a controller that chooses one for every token, and hold it against the fixed levels.
    Control(Control),
    /// Compress without a screen: profile, propose, decide by policy, compress, evaluate.
    Run(Run),
    /// What authors of plans (the planner, each model, you) expected, and what came of it, over all sessions.
    Ledger {
        #[arg(long)]
        json: bool,
    },
    /// Hold language models against the planner: the same runs without a screen, over seeds, in a table.
    BenchAgents(BenchAgents),
    /// Check every kernel of this device against double precision, and its timings against what is possible.
    Selftest(Selftest),
    /// Write the model of a session's last accepted (else last applied) round.
    Export {
        name: String,
        /// Where to; `NAME.safetensors`, or the folder `NAME`, by default.
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// safetensors, onnx, gguf (language models, for llama.cpp), hf (for transformers), or pytorch: a folder with a
        /// Python loader; what FILE ends in by default.
        #[arg(long, default_value = "", hide_default_value = true)]
        format: String,
        #[arg(long)]
        json: bool,
    },
    /// Train a compressed model towards its original's answers, on calibration images.
    Heal(Heal),
    /// Write a model in another format.
    Convert(Convert),
    /// Collect how much each input column of a layer counts, for rounding to GGML's formats, as llama.cpp's llama-imatrix does.
    Imatrix(Imatrix),
    /// The bundled demo: its models and its data.
    Demo {
        #[command(subcommand)]
        what: Demo,
    },
    /// Print completions for a shell: `paring completions bash > ~/.local/share/bash-completion/completions/paring`.
    Completions { shell: clap_complete::Shell },
    /// Write man pages into a folder, such as ~/.local/share/man/man1.
    Man { dir: PathBuf },
    /// Render a screen of a stored or demo session to a file, for documentation.
    #[command(hide = true)]
    Screenshot {
        /// The session's name.
        name: String,
        /// WIDTHxHEIGHT in cells.
        #[arg(long, default_value = "120x40")]
        size: String,
        #[arg(long, short, value_name = "FILE.svg")]
        out: PathBuf,
        /// Keys to press first, in the keymap's notation, separated by spaces.
        #[arg(long, default_value = "")]
        keys: String,
    },
    /// The process in which a chat template runs; started by `paring` itself.
    #[command(hide = true)]
    Template,
    /// The process that owns a session; started by `paring` itself.
    #[command(hide = true)]
    Host {
        /// The session's folder.
        dir: PathBuf,
    },
}

/// At which of its levels a language model writes.
#[derive(Debug, Clone, Default, Args)]
pub struct At {
    /// Of a file that `paring control` wrote: auto lets its controller choose a level for every token, dense takes the whole network, a
    /// number that level.
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<String>,
}

/// Where the model's inputs come from and what runs it.
#[derive(Debug, Clone, Default, Args)]
pub struct On {
    /// The family, where names and shapes do not tell: cifar-resnet, resnet,
    /// vgg, mobilenet-v2, mobilenet-v3, efficientnet, convnext, torch-vit, vit, swin, swin-v2, llama, gemma, gpt2, bert,
    /// modernbert.
    #[arg(long, value_name = "FAMILY")]
    pub arch: Option<String>,
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Let f32 products on a GPU round to TF32: faster, about three decimal digits.
    #[arg(long)]
    pub tf32: bool,
    /// Compute threads; all cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Images a batch, of a healing a step; given, no more are run at once.
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Per-channel mean after division by 255, such as 0.485,0.456,0.406.
    #[arg(long, value_name = "R,G,B")]
    pub mean: Option<String>,
    /// Per-channel standard deviation after division by 255.
    #[arg(long, value_name = "R,G,B")]
    pub std: Option<String>,
    /// Side of the square input image, where the checkpoint leaves it open.
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,
    /// Attention heads, where neither weights nor config.json tell.
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
}

/// How units are ranked when part of them goes.
#[derive(Debug, Clone, Default, Args)]
pub struct Rank {
    /// l1, l2, batch-norm, fpgm, taylor, hessian, activation or random; l2 by default.
    #[arg(long, value_name = "METHOD")]
    pub importance: Option<String>,
}

/// The images of a session beside its evaluation data, and how many of each.
#[derive(Debug, Clone, Default, Args)]
pub struct Images {
    /// Calibration data; never evaluation images unless --calib-is-eval.
    #[arg(long, value_name = "DATA")]
    pub calib: Option<String>,
    /// Let calibration images be evaluation images; the screen says so.
    #[arg(long)]
    pub calib_is_eval: bool,
    /// Use at most this many calibration images; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub calib_limit: usize,
    /// Use at most this many evaluation images; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: usize,
}

/// How text is cut.
#[derive(Debug, Clone, Default, Args)]
pub struct Windows {
    /// Of a language model's text: tokens a window, 512 by default; limits count windows. Of texts to classify: tokens that each
    /// is cut at.
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<usize>,
    /// Of a language model's text: which tokens count. inside: all of a window but its first; next: the one after each.
    #[arg(long, value_name = "WHICH", default_value = "inside")]
    pub targets: String,
    /// Of a model of text that comes without its tokenizer, as an exported one: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Open {
    /// A checkpoint (.safetensors, .pth, .th, .pt), an ONNX model, a Hugging Face folder, or what paring exported;
    /// `demo:vit`, `demo:cnn` and the language model `demo:lm` are bundled.
    pub model: String,
    /// Evaluation data: a folder of class folders, images with a labels.csv, CIFAR (binary or Python), IDX (MNIST),
    /// Parquet (Hugging Face), WebDataset tars, `synthetic:eval`; of a language model text. DIR:train, DIR:validation, DIR:test name a part.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    #[command(flatten)]
    pub images: Images,
    #[command(flatten)]
    pub text: Windows,
    /// Targets, such as `latency=0.6,drop=0.5`: factors of the original and points of top-1; of a language model nats, and `kl=0.05`.
    #[arg(long, value_name = "BUDGET")]
    pub budget: Option<String>,
    /// A TOML file of rules that bind a new session: [[rule]] match, kind, do (veto, limit, at_least, keep_f32, together, prefer), ratio, wish, reason.
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<std::path::PathBuf>,
    /// The session's name; made from the model's by default.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The model that agents use at OPENAI_BASE_URL.
    #[arg(long, value_name = "MODEL")]
    pub llm_model: Option<String>,
    /// The OpenAI-compatible endpoint; OPENAI_BASE_URL by default.
    #[arg(long, value_name = "URL")]
    pub llm_url: Option<String>,
    /// Start the host and leave; attach later.
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub rank: Rank,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Mcp {
    /// The session's name; the newest one by default.
    pub name: Option<String>,
    /// Calls that the program may make.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub calls: usize,
    /// Rehearsals among them: each builds a plan on this machine.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub rehearsals: usize,
    /// Seconds that it may wait for one rehearsal.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub wait: u64,
}

#[derive(Debug, Clone, Args)]
pub struct Eval {
    pub model: String,
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: usize,
    /// Every convolution and linear layer in this precision: f32, int8, int8-static, w8, w4, w4g128, w4g64, w4g32,
    /// f16, bf16 or fp8; or a format of llama.cpp's: q8_0, q6_k, q5_k, q4_k, q4_0 and the others.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    /// How much columns count when weights are rounded to GGML's formats: what `paring imatrix` or llama-imatrix wrote.
    #[arg(long, value_name = "FILE", requires = "precision")]
    pub imatrix: Option<PathBuf>,
    /// Of a language model: keys and values as a cache in f32, f16 or int8 would give them back.
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<String>,
    /// Of a language model: as that program answers on a CPU. llama.cpp rounds what narrow weights are multiplied with to 8 bits (or half precision),
    /// and keeps keys and values in f16.
    #[arg(long = "as", value_name = "PROGRAM", value_parser = ["llama.cpp"], conflicts_with = "kv")]
    pub like: Option<String>,
    /// Set weights of every convolution and linear layer to zero by magnitude first: 2:4, 4:8 or 50%.
    #[arg(long, value_name = "PATTERN")]
    pub sparsity: Option<String>,
    /// Two low-rank factors in the place of every linear layer and ungrouped convolution where they are fewer weights (the truncated singular
    /// value decomposition): their rank, such as 64, or its part of the most that a layer's weights could have, such as 25% (from 64 on to the nearest multiple of 8).
    #[arg(long, value_name = "RANK", conflicts_with = "sparsity")]
    pub factors: Option<String>,
    /// Images from which int8-static takes its ranges; never the evaluation data.
    #[arg(long, value_name = "DATA")]
    pub calib: Option<String>,
    /// How: minmax, percentile:99.99, entropy or mse.
    #[arg(long, value_name = "METHOD")]
    pub calibration: Option<String>,
    /// Also how far the model is from this one, on the same data: KL divergence, agreement, paired differences. Named as the model itself, it is
    /// that without --precision, --sparsity and --factors.
    #[arg(long, value_name = "ORIGINAL")]
    pub against: Option<String>,
    /// Of classifiers: take the data in random order, and stop as soon as it is clear (at 99.5 %) whether the model loses more than so many
    /// points of top-1.
    #[arg(long, value_name = "POINTS", requires = "against", value_parser = points)]
    pub until_clear: Option<f64>,
    /// Of questions: also how likely each choice is, or what was answered to each (JSON only).
    #[arg(long)]
    pub items: bool,
    /// Of questions with free answers: tokens of an answer at most [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub answer_tokens: Option<u32>,
    /// Of questions with free answers: an answer goes on after a line break.
    #[arg(long)]
    pub lines: bool,
    /// Also print the logits of the first N images (JSON only).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub logits: usize,
    #[command(flatten)]
    pub text: Windows,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Robust {
    /// A classifier of images.
    pub model: String,
    /// Evaluation data, with labels.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Use at most this many images, of --ood too; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: usize,
    /// Also all of it of this model, on the same images, and paired differences. Named as the model itself, it is that without --precision.
    #[arg(long, value_name = "ORIGINAL")]
    pub against: Option<String>,
    /// Images of another kind, which the model should be less sure of; their labels do not count.
    #[arg(long, value_name = "DATA")]
    pub ood: Option<String>,
    /// Each at five strengths: noise, blur, contrast, jpeg; all or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub corruptions: String,
    /// Adversaries: fgsm, pgd; all or none.
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub attacks: String,
    /// How far adversaries may change a value, in levels of 255; several by commas.
    #[arg(long, value_name = "LEVELS", default_value = "1")]
    pub epsilon: String,
    /// Steps of pgd, each 2.5 times epsilon divided by them.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub steps: u32,
    /// Let pgd begin anywhere within epsilon instead of at the image.
    #[arg(long)]
    pub random_start: bool,
    /// Of noise and random starts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Every convolution and linear layer in this precision: f32, int8, w8, w4, f16 and others, as for `eval`.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    /// Images from which int8-static takes its ranges; never the evaluation data.
    #[arg(long, value_name = "DATA")]
    pub calib: Option<String>,
    /// How: minmax, percentile:99.99, entropy or mse.
    #[arg(long, value_name = "METHOD")]
    pub calibration: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Heal {
    /// What was compressed: a classifier of images.
    pub model: String,
    /// The network whose answers it learns.
    #[arg(long, value_name = "ORIGINAL")]
    pub from: String,
    /// Images to train on; never evaluation images. Labels are used only where --objective says so.
    #[arg(long, value_name = "DATA")]
    pub calib: String,
    /// Images that say which weights are kept, on which the model was not fitted either; otherwise a tenth of --calib, held back. Never evaluation
    /// images.
    #[arg(long, value_name = "DATA")]
    pub judge: Option<String>,
    /// Use at most this many of them; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub calib_limit: usize,
    /// How long: 10m, 1h, 3 epochs or 500 steps.
    #[arg(long = "for", value_name = "LENGTH", default_value = "10m")]
    pub length: String,
    /// distill (the original's answers, no labels), labels, or both.
    #[arg(long, value_name = "OBJECTIVE", default_value = "distill", value_parser = ["distill", "labels", "both"])]
    pub objective: String,
    /// sgd or adamw; by default what suits the network.
    #[arg(long, value_name = "NAME", value_parser = ["sgd", "adamw"])]
    pub optimiser: Option<String>,
    /// Peak learning rate; by default what suits the optimiser.
    #[arg(long, value_name = "RATE")]
    pub rate: Option<f64>,
    /// What the values that the last layer reads count beside the answers; 0: answers alone.
    #[arg(long, value_name = "WEIGHT", allow_negative_numbers = true)]
    pub features: Option<f64>,
    /// Train on images as they are: neither moved and mirrored nor laid over one another.
    #[arg(long)]
    pub plain: bool,
    /// Move and mirror images, but do not lay them over one another.
    #[arg(long, conflicts_with = "plain")]
    pub no_mixup: bool,
    /// Epochs in a row that show the same views of the images: the original is asked about each view once.
    #[arg(long, value_name = "N")]
    pub repeats: Option<u32>,
    /// Batch norms go by each batch's statistics, not by those that they have.
    #[arg(long)]
    pub batch_norms: bool,
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The file to write: safetensors, onnx, or a folder for pytorch.
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// Where the healing stands is kept here while it goes on, and gone on with when it is there; beside --out by default.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// How often it is kept.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub checkpoint_every: humantime::Duration,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Convert {
    pub model: String,
    /// The file to write.
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// safetensors, onnx, gguf (language models, for llama.cpp), hf (for transformers), or pytorch: a folder with a
    /// Python loader; what FILE ends in by default.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Store every convolution and linear layer in this precision, as `paring eval` takes it.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    /// Of a language model: decide what keys and values are kept in: f32, f16 or int8.
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<String>,
    /// Of a language model: at most this many bits a weight in all, in llama.cpp's formats: the one for each matrix is chosen by what
    /// rounding does to it, with --calib by what that does to the network.
    #[arg(long, value_name = "BITS", conflicts_with_all = ["precision", "factors"], value_parser = bits)]
    pub bits: Option<f64>,
    /// How much columns count when weights are rounded to GGML's formats: what `paring imatrix` or llama-imatrix wrote.
    #[arg(long, value_name = "FILE", conflicts_with = "calib")]
    pub imatrix: Option<PathBuf>,
    /// Text that a language model is cut, masked and rounded to llama.cpp's formats by (by importance, and with GPTQ), or images that int8-static
    /// finds its ranges with; never evaluation data.
    #[arg(long, value_name = "DATA")]
    pub calib: Option<String>,
    /// Of a language model: take at least this share of its weights away, such as 10%: neurons, heads and whole blocks, by what their loss does on
    /// calibration text; the layers that read them are re-fitted.
    #[arg(long, value_name = "SHARE", requires = "calib", value_parser = share)]
    pub prune: Option<f64>,
    /// What goes with --prune: joint (what costs least together) or influence (whole blocks alone, by ShortGPT's block influence).
    #[arg(long, value_name = "HOW", default_value = "joint", requires = "prune", value_parser = ["joint", "influence"])]
    pub prune_by: String,
    /// Of a language model: zeros among the weights of the linear layers in its blocks: 2:4, 4:8 or 50%.
    #[arg(long, value_name = "PATTERN", requires = "calib")]
    pub sparsity: Option<String>,
    /// Of a language model: two low-rank factors in the place of the linear layers in its blocks where they are fewer weights: their rank, such as
    /// 64, or its part of the most that a layer's weights could have, such as 25% (from 64 on to the nearest multiple of 8).
    #[arg(long, value_name = "RANK", requires = "calib", conflicts_with = "sparsity")]
    pub factors: Option<String>,
    /// How those zeros are chosen: learnt (by least squares, with the weights that are left), sparsegpt, wanda or magnitude.
    #[arg(long, value_name = "HOW", default_value = "learnt", requires = "sparsity")]
    pub masks: String,
    /// At most this many windows of calibration text; 0 takes all.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "calib")]
    pub limit: usize,
    /// Of calibration text: tokens a window, 512 by default.
    #[arg(long, value_name = "TOKENS", requires = "calib")]
    pub window: Option<usize>,
    /// Of a language model that comes without its tokenizer: a `tokenizer.json`, or the original model.
    #[arg(long, value_name = "PATH", requires = "calib")]
    pub tokenizer: Option<String>,
    /// How int8-static finds its ranges: minmax, percentile:99.99, entropy or mse.
    #[arg(long, value_name = "METHOD")]
    pub calibration: Option<String>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Selftest {
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Compute threads; all cores by default.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Profile {
    pub model: String,
    /// Timed runs.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub runs: usize,
    /// Every convolution and linear layer in this precision: f32, int8, int8-static, w8, w4, w4g128, w4g64, w4g32,
    /// f16, bf16 or fp8; or a format of llama.cpp's: q8_0, q6_k, q5_k, q4_k, q4_0 and the others.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    /// Of a language model or a classifier of texts: tokens of the prompt or the text, 512 by default.
    #[arg(long, value_name = "TOKENS")]
    pub window: Option<usize>,
    /// Of a language model: measure one token after this many instead of a prompt.
    #[arg(long, value_name = "CONTEXT", conflicts_with = "window")]
    pub decode: Option<usize>,
    /// With --decode: what keys and values are kept in: f32, f16 or int8.
    #[arg(long, value_name = "FORMAT", default_value = "f16", requires = "decode")]
    pub kv: String,
    /// Measure blocks of 512 MiB of weights, one of each kind at least, and take those that are like them to be as fast: for models too large,
    /// or too slow, to run whole.
    #[arg(long)]
    pub sample: bool,
    /// Besides, what the layers' weights are: norms, zeros, range, effective rank, units that do nothing.
    #[arg(long)]
    pub parameters: bool,
    /// What MACs count: conv_linear, attention or norms.
    #[arg(long, value_name = "CONVENTION")]
    pub macs: Option<String>,
    /// Besides, write the rows one after the other as a trace that Perfetto (ui.perfetto.dev) and Chrome open.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Besides, write figures of layers and histograms of their weights as a run that TensorBoard opens: into this folder, one run each.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct Run {
    pub model: String,
    /// Evaluation data, touched for the verdict alone.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    #[command(flatten)]
    pub images: Images,
    #[command(flatten)]
    pub text: Windows,
    #[arg(long, value_name = "BUDGET")]
    pub budget: Option<String>,
    /// Before anything is approved, build the planner's other plans for the budget, try them on held-back calibration data, and take the one
    /// that does best: as many times a run's work as there are plans, four at most.
    #[arg(long, requires = "budget")]
    pub search: bool,
    /// `auto` approves all; a TOML file of rules vetoes, limits and approves by target.
    #[arg(long, value_name = "auto|FILE", default_value = "auto")]
    pub policy: String,
    /// Every convolution and linear layer in this precision: f32, int8, int8-static, w8, w4, w4g128, w4g64, w4g32,
    /// f16, bf16 or fp8; or a format of llama.cpp's: q8_0, q6_k, q5_k, q4_k, q4_0 and the others.
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<String>,
    /// Zeros among the weights of every convolution and linear layer, by magnitude: 2:4, 4:8 or 50%.
    #[arg(long, value_name = "PATTERN", conflicts_with = "factors")]
    pub sparsity: Option<String>,
    /// Two low-rank factors in the place of every linear layer and ungrouped convolution where they are fewer weights: their rank, such as 64, or
    /// its part of the most that a layer's weights could have, such as 25% (from 64 on to the nearest multiple of 8).
    #[arg(long, value_name = "RANK")]
    pub factors: Option<String>,
    /// Train what was made on the calibration data before it is judged: 10m, 3 epochs or 500 steps, and behind it labels or both where it is not
    /// to be by the original's answers (distill).
    #[arg(long, value_name = "LENGTH [OBJECTIVE]")]
    pub heal: Option<String>,
    /// Evaluate what was made only until it is clear whether the budget's drop is kept, on items drawn at random.
    #[arg(long, requires = "budget")]
    pub until_clear: bool,
    #[command(flatten)]
    pub rank: Rank,
    /// How the ranges of int8-static layers are chosen: minmax, percentile:99.99, entropy or mse.
    #[arg(long, value_name = "METHOD")]
    pub calibration: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: u32,
    /// Folder for model.safetensors, report.json and the session.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    #[arg(long, value_name = "MODEL")]
    pub llm_model: Option<String>,
    #[arg(long, value_name = "URL")]
    pub llm_url: Option<String>,
    /// Where agents' decisions leave the budget missed, the planner proposes what is missing.
    #[arg(long)]
    pub complete: bool,
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}

#[derive(Debug, Clone, Args)]
pub struct BenchAgents {
    /// A model and its server, as qwen3:14b@http://localhost:11434/v1, once for each; `,calls=0` behind it where it may look nothing up,
    /// `,helped` where the planner proposes what it leaves missing of the budget, `,price=IN/OUT` for what a million tokens of prompts and of
    /// answers cost.
    #[arg(long, value_name = "MODEL@URL[,calls=N][,helped][,price=IN/OUT]")]
    pub agents: Vec<String>,
    /// Runs of each, with the seeds 0, 1 and so on.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// Folder for the runs, their logs and bench.json.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    #[arg(long)]
    pub json: bool,
    /// What `paring run` is given, without --out, --seed, --llm-url and --llm-model.
    #[arg(last = true, required = true, value_name = "RUN")]
    pub run: Vec<String>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Demo {
    /// Train a demo model anew, reproducibly.
    Train {
        /// vit, cnn or lm.
        kind: String,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The file to write: safetensors, or GGUF of the language model.
        #[arg(long, short, value_name = "FILE")]
        out: PathBuf,
    },
    /// Write some stories of the synthetic text as JSON lines.
    Stories {
        /// train, calib or eval.
        #[arg(long, default_value = "eval")]
        split: String,
        #[arg(long, default_value_t = 50)]
        count: usize,
        #[arg(long, short, value_name = "FILE")]
        out: PathBuf,
    },
    /// Write some images of the synthetic set as PNG files.
    Images {
        /// train, calib or eval.
        #[arg(long, default_value = "eval")]
        split: String,
        #[arg(long, default_value_t = 50)]
        count: usize,
        #[arg(long, short, value_name = "DIR")]
        out: PathBuf,
    },
}

/// A share between none and all, as `10%` or `0.1`.
fn share(text: &str) -> Result<f64, String> {
    let (number, factor) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |t| (t.trim_end(), 0.01));
    let found = number.parse::<f64>().ok().map(|s| s * factor).filter(|s| *s > 0.0 && *s < 1.0);
    found.ok_or_else(|| "a share is more than none and less than all, such as 10% or 0.1".to_owned())
}

/// Points of an accuracy that may be lost.
fn points(text: &str) -> Result<f64, String> {
    let found: Option<f64> = text.parse().ok().filter(|p| (0.0..100.0).contains(p));
    found.ok_or_else(|| "points of top-1 are a number from 0 to below 100, such as 1 or 0.5".to_owned())
}

/// Bits a weight, more than none.
fn bits(text: &str) -> Result<f64, String> {
    let found: Option<f64> = text.parse().ok().filter(|b| (0.5..=32.0).contains(b));
    found.ok_or_else(|| "bits a weight are a number from 0.5 to 32, such as 4.5".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// A debug build asks clap of a subcommand only when it is used, a release build never.
    #[test]
    fn every_subcommand_holds_together() {
        super::Cli::command().debug_assert();
    }
}
