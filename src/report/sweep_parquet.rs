//! Rows of a sweep as Parquet (cargo feature `parquet`): the columns of the CSV, typed.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use thiserror::Error;

use crate::sweep::{FIGURES, SweepFile};

/// A file that could not be made.
#[derive(Debug, Error)]
#[error("cannot write Parquet: {0}")]
pub struct ParquetFileError(#[from] ParquetError);

/// Values of a column; absent where a row has none.
enum Values {
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Words(Vec<Option<String>>),
}

/// The whole file.
///
/// # Errors
/// What the Parquet writer refuses.
pub fn to_parquet(file: &SweepFile) -> Result<Vec<u8>, ParquetFileError> {
    let columns = columns(file);
    let fields: Result<Vec<_>, ParquetError> = columns
        .iter()
        .map(|(name, values)| field(name, values).map(Arc::new))
        .collect();
    let schema = Type::group_type_builder("sweep")
        .with_fields(fields?)
        .build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), properties)?;
    let mut group = writer.next_row_group()?;
    for (_, values) in &columns {
        if let Some(column) = group.next_column()? {
            write(column, values)?;
        }
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

/// The columns in the order of the CSV.
fn columns(file: &SweepFile) -> Vec<(String, Values)> {
    let rows = &file.rows;
    let grid = rows.iter().map(|_| Some(file.grid.clone())).collect();
    let points = rows
        .iter()
        .map(|_| i64::try_from(file.points).ok())
        .collect();
    let point = rows
        .iter()
        .map(|row| i64::try_from(row.point).ok())
        .collect();
    let mut columns = vec![
        ("grid".to_owned(), Values::Words(grid)),
        ("points".to_owned(), Values::Whole(points)),
        ("point".to_owned(), Values::Whole(point)),
    ];
    for (index, key) in file.keys.iter().enumerate() {
        let values: Vec<&String> = rows.iter().map(|row| &row.values[index]).collect();
        columns.push((key.clone(), typed(&values)));
    }
    for (index, name) in FIGURES.iter().enumerate() {
        let figure = |row: &crate::sweep::Row| {
            let figures = row.result.as_ref().ok()?;
            i64::try_from(figures[index]).ok()
        };
        columns.push((
            (*name).to_owned(),
            Values::Whole(rows.iter().map(figure).collect()),
        ));
    }
    let errors = rows.iter().map(|row| row.result.as_ref().err().cloned());
    columns.push(("error".to_owned(), Values::Words(errors.collect())));
    columns
}

/// The narrowest type that holds all values of a key.
fn typed(values: &[&String]) -> Values {
    let whole: Option<Vec<i64>> = values.iter().map(|value| value.parse().ok()).collect();
    if let Some(whole) = whole {
        return Values::Whole(whole.into_iter().map(Some).collect());
    }
    let real: Option<Vec<f64>> = values.iter().map(|value| value.parse().ok()).collect();
    match real {
        Some(real) => Values::Real(real.into_iter().map(Some).collect()),
        None => Values::Words(values.iter().map(|&value| Some(value.clone())).collect()),
    }
}

fn field(name: &str, values: &Values) -> Result<Type, ParquetError> {
    let (physical, logical) = match values {
        Values::Whole(_) => (Physical::INT64, None),
        Values::Real(_) => (Physical::DOUBLE, None),
        Values::Words(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
    };
    Type::primitive_type_builder(name, physical)
        .with_logical_type(logical)
        .with_repetition(Repetition::OPTIONAL)
        .build()
}

fn write(mut column: SerializedColumnWriter<'_>, values: &Values) -> Result<(), ParquetError> {
    // A definition level of 1 says that there is a value.
    fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
        values
            .iter()
            .map(|value| i16::from(value.is_some()))
            .collect()
    }
    match values {
        Values::Whole(values) => {
            let present: Vec<i64> = values.iter().copied().flatten().collect();
            let typed = column.typed::<Int64Type>();
            typed.write_batch(&present, Some(&levels(values)), None)?;
        }
        Values::Real(values) => {
            let present: Vec<f64> = values.iter().copied().flatten().collect();
            let typed = column.typed::<DoubleType>();
            typed.write_batch(&present, Some(&levels(values)), None)?;
        }
        Values::Words(values) => {
            let words = values.iter().flatten();
            let present: Vec<ByteArray> = words.map(|word| word.as_str().into()).collect();
            let typed = column.typed::<ByteArrayType>();
            typed.write_batch(&present, Some(&levels(values)), None)?;
        }
    }
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Row;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    #[test]
    fn rows_read_back_typed() {
        let row = |point, speed: &str, result| Row {
            point,
            values: vec![speed.to_owned(), "4".to_owned(), "v2".to_owned()],
            result,
        };
        let keys = ["host_speed", "model.num_layers", "fsdp"];
        let file = SweepFile {
            grid: "00ff".to_owned(),
            points: 2,
            keys: keys.map(str::to_owned).to_vec(),
            rows: vec![
                row(0, "0.5", Ok([7; FIGURES.len()])),
                row(1, "1", Err("impossible".to_owned())),
            ],
        };
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("sweep.parquet");
        std::fs::write(&path, to_parquet(&file).expect("written")).expect("written");
        let reader = SerializedFileReader::try_from(path.as_path()).expect("opens");
        let rows: Vec<Vec<(String, Field)>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("row").into_columns())
            .collect();
        let get = |row: usize, name: &str| {
            let found = rows[row].iter().find(|(known, _)| known == name);
            found.expect("column").1.clone()
        };
        assert_eq!(get(0, "host_speed"), Field::Double(0.5));
        assert_eq!(get(0, "model.num_layers"), Field::Long(4));
        assert_eq!(get(1, "fsdp"), Field::Str("v2".to_owned()));
        assert_eq!(
            (get(0, "step_ns"), get(1, "step_ns")),
            (Field::Long(7), Field::Null)
        );
        assert_eq!(get(1, "error"), Field::Str("impossible".to_owned()));
    }
}
