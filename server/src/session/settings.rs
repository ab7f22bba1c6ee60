//! SET, RESET and SHOW of options and session parameters.

use weir_planner::SqlError;
use weir_planner::options::{self, OptionSpec, Parameters};

use super::show::{batch, strings};
use super::{Outcome, Session};

impl Session {
    pub(super) fn set_option(&mut self, name: &str, value: Option<&str>) -> Result<Outcome, SqlError> {
        if !self.parameters.set(name, value)? {
            let mut changed = self.options.clone();
            match value {
                Some(value) => changed.set(name, value)?,
                None => changed.reset(name)?,
            }
            changed.check()?;
            self.options = changed;
        }
        Ok(Outcome::command("SET"))
    }

    pub(super) fn reset_option(&mut self, name: Option<&str>) -> Result<Outcome, SqlError> {
        match name {
            None => {
                self.options = self.engine.config.options.clone();
                self.parameters.reset_all();
            }
            Some(name) if Parameters::find(name).is_some() => {
                self.parameters.set(name, None)?;
            }
            Some(name) => {
                let server = self.engine.config.options.clone();
                if server.is_set(name) {
                    let value = server.get(name)?.to_owned();
                    self.options.set(name, &value)?;
                } else {
                    self.options.reset(name)?;
                }
            }
        }
        Ok(Outcome::command("RESET"))
    }

    pub(super) fn show_option(&self, name: &str) -> Result<Outcome, SqlError> {
        let (name, value) = match (OptionSpec::find(name), self.parameters.get(name)) {
            (Some(spec), _) => (spec.name, self.options.get(spec.name)?.to_owned()),
            (None, Some(value)) => (Parameters::find(name).map_or("value", |p| p.name), value.to_owned()),
            (None, None) => return Err(options::unknown(name)),
        };
        Ok(Outcome::table("SHOW", batch(vec![(name, strings([value].into_iter()))])?))
    }

    pub(super) fn show_all_options(&self) -> Result<Outcome, SqlError> {
        let mut rows: Vec<(String, String, String)> = self
            .options
            .all()
            .map(|(spec, value)| (spec.name.to_owned(), value.to_owned(), spec.doc.to_owned()))
            .collect();
        rows.extend(self.parameters.all().map(|(p, value)| (p.name.to_owned(), value.to_owned(), String::new())));
        rows.sort();
        let table = batch(vec![
            ("name", strings(rows.iter().map(|r| r.0.clone()))),
            ("setting", strings(rows.iter().map(|r| r.1.clone()))),
            ("description", strings(rows.iter().map(|r| r.2.clone()))),
        ])?;
        Ok(Outcome::table("SHOW", table))
    }
}
