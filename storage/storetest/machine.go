package storetest

var machineCases = []testCase{}
