//! What a session keeps of how it was opened: whoever opens it again with other words is told, not passed over.
//!
//! Not here: how budget and endpoint change in a session that runs (`:budget`, `:llm`), and what a journal holds.

use crate::config::Settings;
use crate::headless::UsageError;
use crate::headless::out;
use crate::host::OpenSpec;
use crate::session::Place;
use serde_json::Value;

/// A spec's field, how it is asked for, and the setting that it comes from where a flag is not its only source.
const KEPT: [(&str, &str, Option<&str>); 22] = [
    ("arch", "--arch", None),
    ("image", "--image-size", None),
    ("heads", "--heads", None),
    ("window", "--window", None),
    ("targets", "--targets", None),
    ("tokenizer", "--tokenizer", None),
    ("mean", "--mean", None),
    ("std", "--std", None),
    ("limit", "--limit", None),
    ("calib_limit", "--calib-limit", None),
    ("calib_is_eval", "--calib-is-eval", None),
    ("importance", "--importance", None),
    ("seed", "--seed", Some("session.seed")),
    ("calibration", "--calibration", Some("session.calibration")),
    ("budget", "--budget", Some("session.budget")),
    ("device", "--device", Some("session.device")),
    ("tf32", "--tf32", Some("session.tf32")),
    ("threads", "--threads", Some("session.threads")),
    ("batch", "--batch", Some("session.batch")),
    ("patience", "session.patience", Some("session.patience")),
    ("llm_url", "--llm-url", Some("llm.base_url")),
    ("llm_model", "--llm-model", Some("llm.model")),
];

/// Is the session at `place` one of what `spec` asks for? What a flag asks for otherwise is refused; what only the
/// environment or a file of settings says by now is told.
///
/// # Errors
/// Another model, other data, or a flag that the session was not opened with.
pub(super) fn check(place: &Place, spec: &OpenSpec, settings: &Settings) -> anyhow::Result<()> {
    let Some(old) = OpenSpec::of_session(place) else { return Ok(()) };
    if old.how.model != spec.how.model || old.data != spec.data || old.calib != spec.calib {
        anyhow::bail!(
            "session `{}` holds `{}` on `{}`; hint: give this one another `--name`, or `paring attach {0}`",
            place.name,
            old.how.model,
            old.data
        );
    }
    let origin = |key: &str| settings.origins.get(key).map(String::as_str);
    let (flags, rest) = others(&old, spec, &origin)?;
    if !flags.is_empty() {
        return Err(UsageError(format!(
            "session `{}` was opened otherwise: {}; hint: give this one another `--name`, or `paring attach {0}`",
            place.name,
            flags.join(", ")
        ))
        .into());
    }
    if !rest.is_empty() {
        out::complain(&format!(
            "session `{}` stays as it was opened: {}; hint: in the session, `:budget` and `:llm` change what they name",
            place.name,
            rest.join(", ")
        ));
    }
    Ok(())
}

/// What of `asked` is not as in `old`: by flags, and by other settings. Nobody asks for what is as by default.
fn others<'a>(
    old: &OpenSpec,
    asked: &OpenSpec,
    origin: &dyn Fn(&str) -> Option<&'a str>,
) -> serde_json::Result<(Vec<String>, Vec<String>)> {
    let default = serde_json::to_value(OpenSpec::demo("vit"))?;
    let (old, asked) = (serde_json::to_value(old)?, serde_json::to_value(asked)?);
    let (mut flags, mut rest) = (Vec::new(), Vec::new());
    for (field, flag, setting) in KEPT {
        let (old, asked) = (&old[field], &asked[field]);
        if old == asked {
            continue;
        }
        match setting.map(origin) {
            Some(None) => {}
            Some(Some("flags")) => flags.push(difference(flag, old, asked)),
            Some(Some(_)) => rest.push(difference(setting.unwrap_or(flag), old, asked)),
            None if *asked == default[field] => {}
            None => flags.push(difference(flag, old, asked)),
        }
    }
    Ok((flags, rest))
}

fn difference(name: &str, old: &Value, asked: &Value) -> String {
    let word = |v: &Value| match v {
        Value::Null => Some("none".to_owned()),
        Value::String(s) if s.contains("//") => Some(crate::mask::address(s)),
        Value::String(s) => Some(s.clone()),
        Value::Number(_) | Value::Bool(_) => Some(v.to_string()),
        Value::Array(_) | Value::Object(_) => None,
    };
    match (word(old), word(asked)) {
        (Some(old), Some(asked)) => format!("`{name}` is {old}, not {asked}"),
        _ => format!("it has another `{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_otherwise_is_named_and_what_was_left_out_is_not() {
        let old = OpenSpec { seed: 7, limit: 500, ..OpenSpec::demo("cnn") };
        let none = |_: &str| None;
        let plain = OpenSpec::demo("cnn");
        assert_eq!(others(&old, &plain, &none).expect("json"), (vec![], vec![]), "left out");

        let by = |who: &'static str| move |key: &str| (key == "session.seed").then_some(who);
        let asked = OpenSpec { seed: 8, limit: 400, ..plain.clone() };
        let (flags, rest) = others(&old, &asked, &by("flags")).expect("json");
        assert_eq!(flags, ["`--limit` is 500, not 400", "`--seed` is 7, not 8"]);
        assert!(rest.is_empty());

        let (flags, rest) = others(&old, &OpenSpec { seed: 8, ..plain }, &by("environment")).expect("json");
        assert!(flags.is_empty());
        assert_eq!(rest, ["`session.seed` is 7, not 8"]);
    }

    #[test]
    fn an_endpoint_is_named_without_its_secrets() {
        let asked = OpenSpec { llm_url: Some("http://u:secret@h/v1".into()), ..OpenSpec::demo("cnn") };
        let by = |key: &str| (key == "llm.base_url").then_some("environment");
        let (_, rest) = others(&OpenSpec::demo("cnn"), &asked, &by).expect("json");
        assert_eq!(rest, ["`llm.base_url` is none, not http://…@h/v1"]);
    }

    #[test]
    fn every_kept_field_is_one() {
        let spec = serde_json::to_value(OpenSpec::demo("vit")).expect("json");
        for (field, ..) in KEPT {
            assert!(spec.get(field).is_some(), "{field}");
        }
    }
}
