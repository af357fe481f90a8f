//! `--serve`: answers requests line by line, so that `benches/peers` can run this program and its peers in turn.
//!
//! `{"model": NAME or checkpoint, "batch": N, "precision": "f32"|"int8", "seconds": S}` → `{"ms": [..]}`;
//! `{"model": .., "macs": true}` → `{"gmac": G}` an image; `{"ceiling": true}` → `{"f32": .., "int8": ..}` in GMAC/s.

use candle_core::{Device, Tensor};
use paring::exec::{Session, device};
use paring::graph::{MacConvention, macs};
use paring::model::{LoadOptions, Model, load, random};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Instant;

type Plans = HashMap<(String, usize, String), (Session, Tensor)>;

pub fn serve() {
    if let Some(n) = std::env::var("PARING_THREADS").ok().and_then(|v| v.parse().ok()) {
        device::set_threads(n);
    }
    let mut plans = Plans::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let answer = serde_json::from_str(&line)
            .map_err(|e| e.to_string())
            .and_then(|request: Value| answer(&request, &mut plans))
            .unwrap_or_else(|error| json!({ "error": error }));
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn model(name: &str) -> Result<Model, String> {
    match super::spec(name) {
        Some((spec, _)) => Ok(random(&spec, 1)),
        None => load(std::path::Path::new(name), &LoadOptions::default()).map_err(|e| e.to_string()),
    }
}

fn answer(request: &Value, plans: &mut Plans) -> Result<Value, String> {
    if request["ceiling"] == true {
        let c = paring::profile::ceilings(device::threads()).map_err(|e| e.to_string())?;
        return Ok(json!({ "f32": c.f32_gflops / 2.0, "int8": c.int8_gops / 2.0, "gbs": c.bandwidth_gbs }));
    }
    let name = request["model"].as_str().ok_or("no `model`")?;
    if request["macs"] == true {
        let rows = macs(&model(name)?.graph).map_err(|e| e.to_string())?;
        let all: u64 = rows.iter().map(|m| m.get(MacConvention::Attention)).sum();
        return Ok(json!({ "gmac": all as f64 / 1e9 }));
    }
    let batch = request["batch"].as_u64().unwrap_or(1) as usize;
    let precision = request["precision"].as_str().unwrap_or("f32");
    let key = (name.to_owned(), batch, precision.to_owned());
    if !plans.contains_key(&key) {
        let model = model(name)?;
        let mut session = super::session(&model, precision == "int8").map_err(|e| e.to_string())?;
        let mut shape = vec![batch];
        shape.extend(model.graph.input_shape().map_err(|e| e.to_string())?);
        let x = Tensor::randn(0f32, 1.0, shape, &Device::Cpu).map_err(|e| e.to_string())?;
        session.run(&x).map_err(|e| e.to_string())?;
        plans.insert(key.clone(), (session, x));
    }
    let (session, x) = plans.get_mut(&key).ok_or("no plan")?;
    let (start, seconds) = (Instant::now(), request["seconds"].as_f64().unwrap_or(1.0));
    let mut ms = Vec::new();
    while ms.len() < 3 || start.elapsed().as_secs_f64() < seconds {
        let t = Instant::now();
        session.run(x).map_err(|e| e.to_string())?;
        ms.push(t.elapsed().as_secs_f64() * 1e3);
    }
    Ok(json!({ "ms": ms }))
}
