//! Python's operators. Each operation costs fuel in proportion to its result.
//!
//! The engine's own operators join lists lazily and without a cost, compare values of different types, and do not
//! support `%` for strings.

use std::cmp::Ordering;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::text::{charge, failed, string, text};

/// Largest size of a string in bytes; no conversation is longer.
pub const STRING_BYTES_MAX: usize = 16 << 20;

/// Cost of a list item in bytes.
const ITEM_BYTES: usize = 32;

const ITER: &str = "iter()";

/// Adds the operators to `environment`, under names that templates cannot write.
pub fn add_to(environment: &mut Environment<'_>) {
    environment.add_function("+", add);
    environment.add_function("*", multiply);
    environment.add_function("%", remainder);
    environment.add_function("~", |state: &State<'_, '_>, a: &Value, b: &Value| {
        joined(state, &text(state, a)?, &text(state, b)?)
    });
    environment.add_function("in", |state: &State<'_, '_>, item: &Value, container: &Value| {
        is_in(state, item, container)
    });
    environment.add_function("<", |a: &Value, b: &Value| order(a, b).map(Ordering::is_lt));
    environment.add_function("<=", |a: &Value, b: &Value| order(a, b).map(Ordering::is_le));
    environment.add_function(">", |a: &Value, b: &Value| order(a, b).map(Ordering::is_gt));
    environment.add_function(">=", |a: &Value, b: &Value| order(a, b).map(Ordering::is_ge));
    environment.add_function(ITER, |value: Value| iterable(&value).map(|()| value));
}

/// Replaces the engine's operators in `template` by these.
pub fn put_into<'a>(template: &mut CompiledTemplate<'a>) {
    let old = &template.instructions;
    let count = (0..).take_while(|&at| old.get(at).is_some()).count() as u32;
    let is_loop = |at: &u32| matches!(old.get(*at), Some(Instruction::PushLoop(_)));
    // A check is inserted before each loop, so the instructions after it move.
    let mut moved = Vec::with_capacity(count as usize + 1);
    let mut checks = 0;
    for at in 0..=count {
        moved.push(at + checks);
        checks += u32::from(is_loop(&at));
    }
    let mut new = Instructions::new(old.name(), old.source());
    for at in 0..count {
        let line = old.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or_default();
        if is_loop(&at) {
            new.add_with_line(Instruction::CallFunction(ITER, Some(1)), line);
        }
        if let Some(instruction) = old.get(at).cloned() {
            new.add_with_line(replaced(instruction, &moved), line);
        }
    }
    template.instructions = new;
}

fn replaced<'a>(instruction: Instruction<'a>, moved: &[u32]) -> Instruction<'a> {
    let to = |at: u32| moved.get(at as usize).copied().unwrap_or(at);
    let call = |name| Instruction::CallFunction(name, Some(2));
    match instruction {
        Instruction::Add => call("+"),
        Instruction::Mul => call("*"),
        Instruction::Rem => call("%"),
        Instruction::StringConcat => call("~"),
        Instruction::In => call("in"),
        Instruction::Lt => call("<"),
        Instruction::Lte => call("<="),
        Instruction::Gt => call(">"),
        Instruction::Gte => call(">="),
        Instruction::Iterate(at) => Instruction::Iterate(to(at)),
        Instruction::Jump(at) => Instruction::Jump(to(at)),
        Instruction::JumpIfFalse(at) => Instruction::JumpIfFalse(to(at)),
        Instruction::JumpIfFalseOrPop(at) => Instruction::JumpIfFalseOrPop(to(at)),
        Instruction::JumpIfTrueOrPop(at) => Instruction::JumpIfTrueOrPop(to(at)),
        Instruction::BuildMacro(name, at, flags) => Instruction::BuildMacro(name, to(at), flags),
        other => other,
    }
}

/// Returns the name of the type of `value` in Python.
fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "an undefined value",
        ValueKind::None => "none",
        ValueKind::Bool => "a boolean",
        ValueKind::Number => "a number",
        ValueKind::String => "a string",
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => "a tuple",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        ValueKind::Map => "a dictionary",
        _ => "a function",
    }
}

fn impossible(operator: &str, a: &Value, b: &Value) -> Error {
    failed(format!("{operator} of {} and {} is not possible", type_name(a), type_name(b)))
}

/// Checks that Python can iterate over `value`.
///
/// # Errors
/// Python cannot iterate over it.
pub fn iterable(value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain => {
            Err(failed(format!("{} has no items", type_name(value))))
        }
        _ => Ok(()),
    }
}

/// Operand of an arithmetic operator; booleans are numbers too.
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Integer(i128::from(value.is_true()))),
            ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Self::Integer),
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    fn float(&self) -> f64 {
        match *self {
            Self::Integer(integer) => integer as f64,
            Self::Float(float) => float,
        }
    }
}

/// Computes with integers if both operands are integers, and with floats otherwise.
fn compute(
    operator: &str,
    (a, b): (&Value, &Value),
    integers: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Integer(a)), Some(Number::Integer(b))) => {
            let found = integers(a, b)
                .ok_or_else(|| failed(format!("{operator} of these numbers is not possible")))?;
            Ok(i64::try_from(found).map_or_else(|_| Value::from(found), Value::from))
        }
        (Some(a), Some(b)) => Ok(Value::from(floats(a.float(), b.float()))),
        _ => Err(impossible(operator, a, b)),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Returns the concatenation of two strings.
fn joined(state: &State<'_, '_>, a: &str, b: &str) -> Result<Value, Error> {
    check_length(a.len() + b.len())?;
    charge(state, a.len() + b.len())?;
    Ok(Value::from([a, b].concat()))
}

/// Checks the length of a string.
///
/// # Errors
/// A string of `bytes` is too long.
pub fn check_length(bytes: usize) -> Result<(), Error> {
    match bytes <= STRING_BYTES_MAX {
        true => Ok(()),
        false => {
            Err(failed(format!("it makes a string of {bytes} bytes, at most {STRING_BYTES_MAX} are allowed")))
        }
    }
}

/// `a + b`.
pub fn add(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return joined(state, a, b);
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        let mut items = Vec::new();
        for item in a.try_iter()?.chain(b.try_iter()?) {
            charge(state, ITEM_BYTES)?;
            items.push(item);
        }
        return Ok(if a.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    compute("+", (a, b), i128::checked_add, |a, b| a + b)
}

/// `a * b`.
fn multiply(state: &State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    let times = |value: &Value| match Number::of(value) {
        Some(Number::Integer(times)) => Some(usize::try_from(times.max(0)).unwrap_or(usize::MAX)),
        _ => None,
    };
    for (repeated, times) in [(a, times(b)), (b, times(a))] {
        let Some(times) = times else { continue };
        if let Some(text) = repeated.as_str() {
            let bytes = text.len().saturating_mul(times);
            check_length(bytes)?;
            charge(state, bytes)?;
            return Ok(Value::from(text.repeat(times)));
        }
        if is_list(repeated) {
            let list: Vec<Value> = repeated.try_iter()?.collect();
            charge(state, list.len().saturating_mul(times).saturating_mul(ITEM_BYTES))?;
            let items: Vec<Value> = (0..times).flat_map(|_| list.iter().cloned()).collect();
            return Ok(if repeated.is_tuple() {
                Value::from(Tuple::from(items))
            } else {
                Value::from(items)
            });
        }
    }
    compute("*", (a, b), i128::checked_mul, |a, b| a * b)
}

/// `a % b`; a string `a` is a format.
fn remainder(state: &mut State<'_, '_>, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let mut arguments = vec![a.clone()];
        match b.is_tuple() {
            true => arguments.extend(b.try_iter()?),
            false => arguments.push(b.clone()),
        }
        return formatted(state, &arguments);
    }
    match (Number::of(a), Number::of(b)) {
        (Some(_), Some(divisor)) if divisor.float() == 0.0 => {
            Err(failed("the remainder of a division by zero"))
        }
        _ => compute("%", (a, b), floor_remainder, |a, b| {
            let remainder = a % b;
            if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
        }),
    }
}

/// Returns a remainder with the sign of the divisor.
fn floor_remainder(a: i128, b: i128) -> Option<i128> {
    let remainder = a.checked_rem(b)?;
    if remainder != 0 && (remainder < 0) != (b < 0) { remainder.checked_add(b) } else { Some(remainder) }
}

/// `format % arguments`; the first of `arguments` is the format.
///
/// # Errors
/// The format takes other arguments, or is too wide.
pub fn formatted(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let format = arguments.first().map(string).unwrap_or_default();
    charge(state, widths(format))?;
    let mut plain = Vec::with_capacity(arguments.len());
    for argument in arguments {
        // Containers become text here, where each of their items costs fuel.
        plain.push(
            match is_list(argument) || (argument.kind() == ValueKind::Map && !format.contains("%(")) {
                true => Value::from(text(state, argument)?),
                false => argument.clone(),
            },
        );
    }
    state.apply_filter("engine_format", &plain)
}

/// Returns the sum of all numbers in a format. It is an upper bound of the sum of its widths.
pub fn widths(format: &str) -> usize {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.fold(0, |sum: usize, digits| sum.saturating_add(digits.parse().unwrap_or(usize::MAX)))
}

/// `item in container`.
pub fn is_in(state: &State<'_, '_>, item: &Value, container: &Value) -> Result<bool, Error> {
    match (container.kind(), item.as_str()) {
        (ValueKind::String, Some(part)) => {
            charge(state, string(container).len())?;
            Ok(string(container).contains(part))
        }
        (ValueKind::Map, _) => {
            Ok(container.as_object().is_some_and(|object| object.get_value(item).is_some()))
        }
        (ValueKind::Undefined, _) => Ok(false),
        (ValueKind::Seq | ValueKind::Iterable, _) => {
            for other in container.try_iter()? {
                charge(state, ITEM_BYTES)?;
                if other == *item {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(impossible("in", item, container)),
    }
}

/// Compares two values.
///
/// # Errors
/// Values of these types have no order.
fn order(a: &Value, b: &Value) -> Result<Ordering, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let is_same = (is_number(a) && is_number(b))
        || (a.as_str().is_some() && b.as_str().is_some())
        || (is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple());
    match is_same {
        true => Ok(a.cmp(b)),
        false => Err(impossible("a comparison", a, b)),
    }
}
