package compat

// The rules that a problem can name. They are stable: people and programs look
// for them.
const (
	RuleType              = "type"
	RuleForbidden         = "forbidden"
	RuleEnum              = "enum"
	RuleConst             = "const"
	RuleMinimum           = "minimum"
	RuleMaximum           = "maximum"
	RuleMultipleOf        = "multiple_of"
	RuleMinLength         = "min_length"
	RuleMaxLength         = "max_length"
	RulePattern           = "pattern"
	RuleFormat            = "format"
	RuleMinItems          = "min_items"
	RuleMaxItems          = "max_items"
	RuleUniqueItems       = "unique_items"
	RuleItemsClosed       = "items_closed"
	RuleContains          = "contains"
	RuleMaxContains       = "max_contains"
	RuleRequired          = "required"
	RuleAddedToOpen       = "property_added_to_open"
	RuleRemovedFromClosed = "property_removed_from_closed"
	RuleClosed            = "additional_properties_closed"
	RulePropertyNames     = "property_names"
	RuleMinProperties     = "min_properties"
	RuleMaxProperties     = "max_properties"
	RuleDependentRequired = "dependent_required"
	RuleAnyOf             = "any_of"
	RuleOneOf             = "one_of"
	RuleNot               = "not"
	RuleUndecided         = "undecided"
)

// RuleText is a rule with the sentence that explains it.
type RuleText struct {
	Name, Text string
}

// Rules are all rules that a problem can name.
var Rules = []RuleText{
	{RuleType, "A value may be of a type that the reader does not take."},
	{RuleForbidden, "The reader allows no value at all here (its schema is `false`), and there may be one."},
	{RuleEnum, "A value may be none of those that the reader lists."},
	{RuleConst, "A value may differ from the only one that the reader takes."},
	{RuleMinimum, "A number may lie below the reader's `minimum` or `exclusiveMinimum`."},
	{RuleMaximum, "A number may lie above the reader's `maximum` or `exclusiveMaximum`."},
	{RuleMultipleOf, "A number may be no multiple of what the reader wants."},
	{RuleMinLength, "A string may be shorter than the reader takes."},
	{RuleMaxLength, "A string may be longer than the reader takes."},
	{RulePattern, "A string may not match the reader's pattern."},
	{RuleFormat, "A string may not have the format that the reader checks."},
	{RuleMinItems, "An array may have fewer items than the reader takes."},
	{RuleMaxItems, "An array may have more items than the reader takes."},
	{RuleUniqueItems, "An array may have equal items, and the reader takes none such."},
	{RuleItemsClosed, "An array may have items at places where the reader allows none."},
	{RuleContains, "An array may lack the items that the reader looks for."},
	{RuleMaxContains, "An array may have more of the items that the reader counts than it takes."},
	{RuleRequired, "A property that the reader requires may be missing."},
	{RuleAddedToOpen, "The reader describes a property of which the writer says nothing, and an open object may have had anything under that name. `lenient` lets it pass, if the property is optional."},
	{RuleRemovedFromClosed, "The writer describes a property that the reader does not know, and the reader takes no others. `lenient` lets it pass."},
	{RuleClosed, "An object may have properties that neither side names, and the reader takes none such."},
	{RulePropertyNames, "A property may have a name that the reader does not take."},
	{RuleMinProperties, "An object may have fewer properties than the reader takes."},
	{RuleMaxProperties, "An object may have more properties than the reader takes."},
	{RuleDependentRequired, "A property that the reader requires beside another may be missing."},
	{RuleAnyOf, "A value may match none of the reader's alternatives."},
	{RuleOneOf, "A value may match none of the reader's alternatives, or more than one."},
	{RuleNot, "A value may be one that the reader excludes."},
	{RuleUndecided, "It could not be decided, and no document was found that shows a problem. It counts as one, because what is called compatible must be."},
}

// keywordRules gives the rule that a keyword of a validator's error stands for.
var keywordRules = map[string]string{
	"type": RuleType, "enum": RuleEnum, "const": RuleConst,
	"minimum": RuleMinimum, "exclusiveMinimum": RuleMinimum, "maximum": RuleMaximum, "exclusiveMaximum": RuleMaximum, "multipleOf": RuleMultipleOf,
	"minLength": RuleMinLength, "maxLength": RuleMaxLength, "pattern": RulePattern, "format": RuleFormat,
	"minItems": RuleMinItems, "maxItems": RuleMaxItems, "uniqueItems": RuleUniqueItems, "contains": RuleContains, "minContains": RuleContains, "maxContains": RuleMaxContains,
	"required": RuleRequired, "propertyNames": RulePropertyNames, "minProperties": RuleMinProperties, "maxProperties": RuleMaxProperties,
	"dependentRequired": RuleDependentRequired, "dependency": RuleDependentRequired, "dependencies": RuleDependentRequired, "additionalProperties": RuleClosed,
	"anyOf": RuleAnyOf, "oneOf": RuleOneOf, "not": RuleNot,
}
