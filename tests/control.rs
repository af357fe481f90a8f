//! Levels of a language model and the controller that chooses one for every token: a change of level computes nothing anew, levels lie within each
//! other, files travel whole and are refused where they do not fit, `control`, `generate` and `serve` on small networks.

#[path = "control/files.rs"]
mod files;
#[path = "control/programs.rs"]
mod programs;
#[path = "control/session.rs"]
mod session;
#[path = "common/talker.rs"]
mod talker;

use candle_core::{Device, Tensor};
use paring::control::{Fits, Ladder, Level, SearchOptions, branches, level_model, level_models, search};
use paring::exec::{Cancel, CompileOptions, DecodeOptions, Decoder, KvFormat, Plan};
use paring::graph::ParamRole;
use paring::model::{LoadOptions, Model, load};
use paring::prune::{self, Group};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language")
}

fn llama() -> Model {
    load(&folder().join("llama"), &LoadOptions::default()).unwrap()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| ((i + 1).wrapping_mul(2_654_435_761) >> 8) % 96).collect()
}

/// Levels by hand: the first MLP narrowed to a half, then the last one left out as well.
fn by_hand(model: &Model) -> (Vec<Group>, Ladder) {
    let groups = prune::groups(&model.graph);
    let branches = branches(model, &groups);
    assert!(branches.len() >= 2, "{branches:?}");
    let whole: Vec<u32> = branches.iter().map(|b| b.order.len() as u32).collect();
    let mut narrowed = whole.clone();
    narrowed[0] /= 2;
    let mut gone = narrowed.clone();
    *gone.last_mut().unwrap() = 0;
    let levels = [whole, narrowed, gone].map(|kept| Level { kept }).into();
    (groups, Ladder { branches, levels })
}

fn plans(model: &Model, (groups, ladder): &(Vec<Group>, Ladder)) -> Vec<Plan> {
    let options = CompileOptions { threads: Some(1), ..CompileOptions::default() };
    ladder
        .levels
        .iter()
        .map(|level| Plan::of(&level_model(model, groups, ladder, level).unwrap(), &options).unwrap())
        .collect()
}

/// What is re-fitted for its levels on text of the same kind as [`ids`].
fn fitted(model: &Model, groups: &[Group], ladder: &Ladder) -> Fits {
    let all = ids(40 * 24);
    let windows: Vec<Vec<u32>> = all.chunks(24).map(<[u32]>::to_vec).collect();
    Fits::made(model, groups, ladder, &windows, &Cancel::default(), &mut |_, _| {}).unwrap()
}

fn over(plans: &[Plan], sequences: usize) -> Decoder {
    Decoder::over(plans, &DecodeOptions { sequences, context: 32, kv: KvFormat::F32 }).unwrap()
}

/// What a level leaves out counts nothing: it says what the whole network says with those weights at zero.
#[test]
fn a_level_is_the_network_with_what_it_leaves_out_at_zero() {
    let model = llama();
    let hand = by_hand(&model);
    let x = Tensor::new(ids(13).as_slice(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    for (plan, level) in plans(&model, &hand).iter().zip(&hand.1.levels) {
        let mut zeroed = model.clone();
        for (branch, kept) in hand.1.branches.iter().zip(&level.kept) {
            let group = hand.0.iter().find(|g| g.id == branch.group).unwrap();
            let reads = group.members.iter().find(|m| m.role == prune::MemberRole::Consumer).unwrap();
            let node = model.graph.node(model.graph.by_name(&reads.node).unwrap());
            let name = node.param(ParamRole::Weight).unwrap();
            let mut values = model.params.get(name).unwrap().values().into_owned();
            let columns = branch.order.len();
            for gone in &branch.order[*kept as usize..] {
                values.iter_mut().skip(*gone as usize).step_by(columns).for_each(|v| *v = 0.0);
            }
            zeroed.params.set(name, values).unwrap();
        }
        let want = flat(&Plan::of(&zeroed, &CompileOptions::default()).unwrap().run(&x).unwrap());
        assert!(apart(&flat(&plan.run(&x).unwrap()), &want) < 1e-4);
    }
}

/// What a level leaves out is made up for on text that nothing was fitted on, in nats; levels that keep as much of a branch share what was fitted.
#[test]
fn what_reads_the_neurons_that_are_left_makes_up_for_the_others() {
    let model = llama();
    let (groups, mut ladder) = by_hand(&model);
    // One level more, which narrows another branch besides.
    let mut more = ladder.levels[1].clone();
    more.kept[1] /= 2;
    ladder.levels.truncate(2);
    ladder.levels.push(more);
    let fits = fitted(&model, &groups, &ladder);
    let options = CompileOptions { threads: Some(1), ..CompileOptions::default() };
    let other: Vec<u32> = ids(2000).split_off(1400);
    let x = Tensor::from_vec(other, (25, 24), &Device::Cpu).unwrap();
    let levels: Vec<Model> = level_models(&model, &groups, &ladder, &fits).collect::<Result<_, _>>().unwrap();
    let run = |m: &Model| Plan::of(m, &options).unwrap().run(&x).unwrap();
    let whole = run(&model);
    let kl = |m: &Model| {
        let mut all = paring::task::Divergences::default();
        all.add(&whole, &run(m)).unwrap();
        all.mean()
    };
    for (level, own) in ladder.levels.iter().zip(&levels).skip(1) {
        let (fitted, plain) = (kl(own), kl(&level_model(&model, &groups, &ladder, level).unwrap()));
        assert!(fitted < 0.9 * plain, "{fitted} {plain}");
    }
    let branch = &ladder.branches[0];
    let (name, first) = &fits.of(branch, ladder.levels[1].kept[0]).unwrap()[0];
    for level in &levels[1..] {
        assert_eq!(level.params.get(name).unwrap().values(), first.values());
    }
    assert!(fits.of(branch, branch.order.len() as u32).is_none());
}

/// The same tokens at the same levels, in one piece or one by one, with other levels tried and taken back in between: the same logits. All
/// that a change of level may leave behind is what the token itself left.
#[test]
fn changing_levels_mid_sequence_is_what_computing_anew_gives() {
    let model = llama();
    let hand = by_hand(&model);
    let (plans, all) = (plans(&model, &hand), ids(16));
    let pattern = [0, 0, 0, 1, 2, 2, 0, 1, 1, 1, 2, 0, 2, 1, 0, 2];
    // In runs of one level.
    let mut anew = Vec::new();
    for end in 1..=all.len() {
        let mut decoder = over(&plans, 1);
        let (mut from, mut logits) = (0, Vec::new());
        while from < end {
            let to = (from..end).find(|t| pattern[*t] != pattern[from]).unwrap_or(end);
            decoder.set_level(pattern[from]).unwrap();
            logits = decoder.feed(0, &all[from..to]).unwrap();
            from = to;
        }
        anew.push(logits);
    }
    // One by one, beside another sequence, trying every other level at each token first.
    let mut decoder = over(&plans, 2);
    decoder.feed(1, &all[3..9]).unwrap();
    let mut differ = false;
    for (t, id) in all.iter().enumerate() {
        for other in (0..plans.len()).filter(|l| *l != pattern[t]) {
            decoder.set_level(other).unwrap();
            differ |= apart(&decoder.feed(0, &[*id]).unwrap(), &anew[t]) > 1e-3;
            decoder.rewind(0, t);
        }
        decoder.set_level(pattern[t]).unwrap();
        let off = apart(&decoder.feed(0, &[*id]).unwrap(), &anew[t]);
        assert!(off < 1e-4, "token {t} is off by {off}");
    }
    assert!(differ, "the levels are all the same");
}

/// Where levels differ after the last attention alone, keys and values are the same at all of them: whatever went before, a token says what its
/// level alone says of the whole text.
#[test]
fn what_comes_after_the_last_attention_leaves_nothing_behind() {
    let model = llama();
    let (groups, mut ladder) = by_hand(&model);
    let whole = ladder.levels[0].kept.clone();
    for (level, left) in ladder.levels.iter_mut().zip([2, 1, 0]) {
        level.kept = whole.clone();
        let last = level.kept.last_mut().unwrap();
        *last = *last * left / 2;
    }
    let (plans, all) = (plans(&model, &(groups, ladder)), ids(14));
    let x = Tensor::new(all.as_slice(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let alone: Vec<Vec<Vec<f32>>> =
        plans.iter().map(|p| p.run(&x).unwrap().squeeze(0).unwrap().to_vec2().unwrap()).collect();
    let mut decoder = over(&plans, 1);
    for (t, id) in all.iter().enumerate() {
        let level = (t * 7 + 2) % 3;
        decoder.set_level(level).unwrap();
        let got = decoder.feed(0, &[*id]).unwrap();
        assert!(apart(&got, &alone[level][t]) < 1e-4, "token {t}");
        assert!(apart(&alone[0][t], &alone[2][t]) > 1e-3);
    }
}

#[test]
fn plans_that_leave_other_keys_and_values_are_no_levels() {
    let model = llama();
    let own = plans(&model, &by_hand(&model));
    let options = DecodeOptions { sequences: 1, context: 8, kv: KvFormat::F32 };
    // The same vocabulary, norms before its attention.
    let other = load(&folder().join("qwen3"), &LoadOptions::default()).unwrap();
    let other = Plan::of(&other, &CompileOptions::default()).unwrap();
    let error = Decoder::over(&[own[0].clone(), other], &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("not those of the other level") && error.contains("hint: "), "{error}");
    // A layer without its attention.
    let block = model.graph.blocks[0].name.clone();
    let cut = prune::apply(&model, &[], &[(prune::Target::Block(block), prune::Action::RemoveBlock)]).unwrap();
    let cut = Plan::of(&cut, &CompileOptions::default()).unwrap();
    let error = Decoder::over(&[own[0].clone(), cut], &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("not those of the other level"), "{error}");
    assert!(Decoder::over(&[], &options).is_err());
    let mut decoder = Decoder::over(&own, &options).unwrap();
    let error = decoder.set_level(3).unwrap_err().to_string();
    assert!(error.contains("no level 3; hint: 0 to 2"), "{error}");
    assert_eq!((decoder.level(), decoder.levels()), (0, 3));
}

#[test]
fn searched_levels_lie_within_each_other_and_repeat_themselves() {
    let model = llama();
    let groups = prune::groups(&model.graph);
    let x = Tensor::new(ids(48).as_slice(), &Device::Cpu).unwrap().reshape((2, 24)).unwrap();
    let how = SearchOptions { levels: 4, least: 0.5, steps: 4, rungs: 1 };
    let find = || {
        let mut tried = 0;
        let options = CompileOptions { threads: Some(1), ..CompileOptions::default() };
        let found = search(&model, &groups, &x, (&how, &options), &Cancel::default(), &mut |_| tried += 1).unwrap();
        (found, tried)
    };
    let (ladder, tried) = find();
    assert!(tried > 6);
    assert_eq!(ladder.check(&model, &groups), Ok(()));
    assert!(ladder.levels.len() >= 3, "{:?}", ladder.levels);
    for pair in ladder.levels.windows(2) {
        assert!(pair[0].kept.iter().zip(&pair[1].kept).all(|(a, b)| b <= a) && pair[0] != pair[1]);
    }
    let bytes: Vec<u64> = plans(&model, &(groups.clone(), ladder.clone())).iter().map(Plan::bytes_per_token).collect();
    assert!(bytes.windows(2).all(|b| b[1] < b[0]), "{bytes:?}");
    assert_eq!(find().0, ladder);
    // The first order is by what neurons are worth: it is not that of the file.
    assert!(ladder.branches.iter().any(|b| b.order.windows(2).any(|w| w[0] > w[1])));
}

#[test]
fn ladders_that_are_none_are_told() {
    let model = llama();
    let (groups, ladder) = by_hand(&model);
    let refused = |change: &dyn Fn(&mut Ladder), words: &str| {
        let mut bad = ladder.clone();
        change(&mut bad);
        let error = bad.check(&model, &groups).unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    assert_eq!(ladder.check(&model, &groups), Ok(()));
    refused(&|l| l.levels[1].kept[0] = u32::MAX, "level 1 keeps what the level before it has not");
    refused(&|l| l.levels.swap(0, 1), "level 0 keeps");
    refused(&|l| l.levels.swap(1, 2), "level 2 keeps");
    refused(&|l| l.levels[2].kept.truncate(1), "level 2 keeps");
    refused(&|l| l.branches[0].order[0] = l.branches[0].order[1], "name every neuron once");
    refused(&|l| l.branches[1] = l.branches[0].clone(), "twice");
    refused(&|l| l.branches[0].add = "lm_head".into(), "an MLP that the model has not");
    refused(&|l| l.levels.clear(), "0 levels");
    refused(&|l| l.levels = vec![l.levels[0].clone(); 17], "17 levels");
}
