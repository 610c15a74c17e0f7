# Compiler settings shared by every target, and the three target kinds of this tree:
#   mc_module(folder ...)  object library of one source folder; all of them together make libmooncake_core.so
#   mc_app(name ...)       a program in bin/
#   mc_test(name ...)      a gtest program, its cases known to ctest one by one
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(mc_flags INTERFACE)
target_compile_options(mc_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers $<$<BOOL:${MC_WERROR}>:-Werror>)
if(MC_SANITIZE)
  target_compile_options(mc_flags INTERFACE -fsanitize=${MC_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(mc_flags INTERFACE -fsanitize=${MC_SANITIZE})
endif()

# mc_module(NAME SOURCES a.cc ... [DEFINES X ...] [LIBS lib ...] [TESTS x_test.cc ...] [TEST_LIBS lib ...] [NPU_TESTS pattern ...])
# Declares mc_<NAME>. TESTS become the program <NAME>_test, linked with the whole core.
function(mc_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEFINES;LIBS;TESTS;TEST_LIBS;NPU_TESTS" ${ARGN})
  add_library(mc_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(mc_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(mc_${name} PRIVATE ${ARG_DEFINES})
  target_link_libraries(mc_${name} PUBLIC mc_flags Threads::Threads fmt::fmt ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY MC_MODULES mc_${name})
  if(ARG_TESTS AND MC_BUILD_TESTS)
    mc_test(${name}_test SOURCES ${ARG_TESTS} LIBS ${ARG_TEST_LIBS} NPU_TESTS ${ARG_NPU_TESTS})
  endif()
endfunction()

# mc_app(NAME SOURCES ... [LIBS ...])
function(mc_app name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mooncake_core ${ARG_LIBS})
endfunction()

# mc_test(NAME SOURCES ... [LIBS ...] [NPU_TESTS pattern ...]). Tests run with the ACL emulator on the library path. Cases
# that match NPU_TESTS (gtest patterns) need an NPU runtime and exist only in builds that have one.
function(mc_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;NPU_TESTS" ${ARGN})
  set(filter "")
  if(ARG_NPU_TESTS AND NOT USE_ASCEND_CACHE_TIER)
    list(JOIN ARG_NPU_TESTS ":" patterns)
    set(filter TEST_FILTER "-${patterns}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mooncake_core GTest::gmock GTest::gtest GTest::gtest_main ${ARG_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(TARGET ascendcl AND TARGET acl_rt)
    add_dependencies(${name} ascendcl acl_rt)  # so that one test program, built alone, finds them
  endif()
  gtest_discover_tests(${name} ${filter} DISCOVERY_MODE PRE_TEST
    # Two properties: of a list in one of them only the first element would arrive.
    PROPERTIES TIMEOUT 240 LABELS ${name}
               ENVIRONMENT "MC_BUILD_DIR=${CMAKE_BINARY_DIR}"
               ENVIRONMENT_MODIFICATION "LD_LIBRARY_PATH=set:${CMAKE_BINARY_DIR}/emulator/lib64")
endfunction()

# mc_emulated_run(TEST NAME [PROFILE X] [FILTER gtest-filter] [ENV A=b ...]): runs a test program once more as the ctest case
# TEST.NAME, on the libraries of another CANN release or with other settings of the ACL emulator; there a broken rule of use
# stops it, and so does memory that is left over at the end.
function(mc_emulated_run test name)
  cmake_parse_arguments(ARG "" "PROFILE;FILTER" "ENV" ${ARGN})
  set(libraries lib64)
  if(ARG_PROFILE)
    set(libraries lib64-${ARG_PROFILE})
    add_dependencies(${test} aclemu_profiles)
  endif()
  add_test(NAME ${test}.${name} COMMAND ${test} --gtest_filter=${ARG_FILTER} --gtest_brief=1)
  set_tests_properties(${test}.${name} PROPERTIES TIMEOUT 900 LABELS ${test}
    ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/emulator/${libraries};MC_BUILD_DIR=${CMAKE_BINARY_DIR};ACLEMU_LEAK_FATAL=1;${ARG_ENV}")
endfunction()
