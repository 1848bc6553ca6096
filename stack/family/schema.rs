//! The JSON Schema of a family file, for editors.

use crate::raw::RawFamily;

/// The schema as it is kept in `families/schema.json`, with a newline at its end.
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(RawFamily);
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}
